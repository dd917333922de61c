//! What a replica asks of the term store and of the register, and what becomes of it.

use leasehold_types::Epoch;
use leasehold_types::mutation::{self, Mutation};

use crate::action::Part;
use crate::clock::BOUNDS;
use crate::scope::ACCOUNTS;
use crate::state::{Request, RequestKind, Term};
use crate::step::Step;
use crate::world::CoreCall;

impl Step<'_> {
    /// A compare-and-swap on the term store that succeeds.
    pub(crate) fn take(&mut self, replica: usize) {
        let now = self.state.replica_now(replica);
        let leadership = self.world.scope.leadership;
        let store = &mut self.state.store;
        let node = &mut self.state.replicas[replica];
        // Nothing has been renewed since: what ran then ends within one more leadership.
        let since = self.state.rates[0][replica].local(store.changed_at);
        let predecessor_end = match store.epoch {
            Epoch(0) => now,
            _ => since + BOUNDS.outlast(leadership),
        };
        store.epoch = store.epoch.max(node.above).next();
        store.owner = Some(replica as u8);
        store.changed_at = self.state.t;
        let (epoch, until) = (store.epoch, now + leadership);
        let renew_at = now + leadership / 3;
        node.term = Some(Term { epoch, until, predecessor_end, renew_at, told: false });
        node.register.clear();
        node.terms = vec![Request { epoch, what: RequestKind::List([None; ACCOUNTS]), done: None }];
    }

    pub(crate) fn renew(&mut self, replica: usize) {
        let now = self.state.replica_now(replica);
        let leadership = self.world.scope.leadership;
        let node = &mut self.state.replicas[replica];
        let Some(term) = node.term.as_mut() else { return };
        term.renew_at = now + leadership / 3;
        let (epoch, what) = (term.epoch, RequestKind::Renew(now));
        node.terms.push(Request { epoch, what, done: None });
    }

    pub(crate) fn step_down(&mut self, replica: usize, above: Option<Epoch>) {
        let node = &mut self.state.replicas[replica];
        node.above = node.above.max(above.unwrap_or_default());
        node.register.clear();
        node.terms.clear();
        if let Some(term) = node.term.take() {
            node.terms.push(Request { epoch: term.epoch, what: RequestKind::Release, done: None });
        }
    }

    pub(crate) fn ask_register(&mut self, replica: usize, what: RequestKind) {
        let node = &mut self.state.replicas[replica];
        let Some(term) = node.term else { return };
        node.register.push(Request { epoch: term.epoch, what, done: None });
    }

    pub(crate) fn deposed(&mut self, replica: usize) {
        let node = &mut self.state.replicas[replica];
        node.term = None;
        node.register.clear();
        node.terms.clear();
        self.core(replica, &CoreCall::Deposed);
    }

    /// The oldest request to the term store continues.
    pub(crate) fn terms(&mut self, replica: usize, part: Part) {
        if part != Part::Answer {
            self.carry_term(replica);
        }
        if part != Part::Carry {
            self.answer_term(replica);
        }
    }

    fn carry_term(&mut self, replica: usize) {
        let store = &mut self.state.store;
        let Some(request) = self.state.replicas[replica].terms.first_mut() else { return };
        let mine = store.epoch == request.epoch && store.owner == Some(replica as u8);
        match &mut request.what {
            RequestKind::List(entries) => *entries = store.register,
            RequestKind::Renew(_) if mine => store.changed_at = self.state.t,
            RequestKind::Release if mine => {
                store.owner = None;
                store.changed_at = self.state.t;
            }
            _ => {}
        }
        request.done = Some(mine);
    }

    fn answer_term(&mut self, replica: usize) {
        let now = self.state.replica_now(replica);
        let leadership = self.world.scope.leadership;
        let node = &mut self.state.replicas[replica];
        let request = node.terms.remove(0);
        let Some(term) = node.term.as_mut().filter(|term| term.epoch == request.epoch) else {
            return;
        };
        let epoch = term.epoch;
        match request.what {
            RequestKind::List(exposed) if now < term.until => {
                term.told = true;
                let (until, predecessor_end) = (term.until, term.predecessor_end);
                let call = CoreCall::Elected { epoch, until, predecessor_end, exposed };
                self.core(replica, &call);
            }
            RequestKind::Renew(sent_at) if request.done == Some(true) => {
                term.until = term.until.max(sent_at + leadership);
                let until = term.until;
                if term.told {
                    self.core(replica, &CoreCall::Renewed { epoch, sent_at, until });
                }
            }
            RequestKind::Renew(_) => self.deposed(replica),
            _ => {}
        }
    }

    /// The oldest request to the register continues. A write is answered after another look at the
    /// epoch.
    pub(crate) fn register(&mut self, replica: usize, part: Part) {
        if part != Part::Answer {
            self.carry_register(replica);
        }
        if part != Part::Carry {
            self.answer_register(replica);
        }
    }

    fn carry_register(&mut self, replica: usize) {
        let Some(request) = self.state.replicas[replica].register.first_mut() else { return };
        request.done = Some(true);
        let (epoch, what) = (request.epoch, request.what.clone());
        let register = &mut self.state.store.register;
        match what {
            RequestKind::Write(entries) => {
                for (pod, asked) in entries {
                    let found = &mut register[usize::from(pod)];
                    *found = self.world.enter(*found, pod, asked, epoch);
                }
            }
            RequestKind::Unregister(pods) => {
                for pod in pods {
                    let found = &mut register[usize::from(pod)];
                    *found = self.world.strike(*found, pod, epoch);
                }
            }
            RequestKind::List(_) | RequestKind::Renew(_) | RequestKind::Release => {}
        }
    }

    fn answer_register(&mut self, replica: usize) {
        let request = self.state.replicas[replica].register.remove(0);
        // A registration is answered after a renewal that was sent when it had been written.
        let leads = self.state.store.epoch == request.epoch
            || mutation::on(Mutation::RegisteredWithoutLeadership);
        match request.what {
            _ if !leads => self.deposed(replica),
            RequestKind::Write(entries) => self.core(replica, &CoreCall::Registered(entries)),
            RequestKind::Unregister(pods) => self.core(replica, &CoreCall::Unregistered(pods)),
            _ => {}
        }
    }
}
