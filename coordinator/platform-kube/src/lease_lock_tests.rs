//! The Lease as it is read, taken, renewed and released.

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

fn record(holder: &str, epoch: u64) -> LeaseRecord {
    LeaseRecord::example(40, holder, Epoch(epoch), MINUTE, 1)
}

fn lock() -> LeaseLock {
    let config = kube::Config::new("http://127.0.0.1:1".parse().expect("a URL"));
    let client = Client::try_from(config).expect("a client");
    LeaseLock::new(client, "ns", "me_1".into(), "10.0.0.2:7400".into(), 2 * MINUTE)
}

#[test]
fn the_next_epoch_is_above_every_earlier_one() {
    let read = |revision, epoch: Option<u64>| LeaseRead {
        revision,
        record: epoch.map(|epoch| record("other_1", epoch)),
    };
    // No Lease: it may have been deleted. Its epoch was not above the store's revision.
    assert_eq!(next_epoch(&read(41, None), Epoch(0)), Epoch(42));
    assert_eq!(next_epoch(&read(41, Some(12)), Epoch(0)), Epoch(42));
    // Agents or the Lease know a higher epoch than the store, which was restored from a backup.
    assert_eq!(next_epoch(&read(41, Some(99)), Epoch(0)), Epoch(100));
    assert_eq!(next_epoch(&read(41, Some(12)), Epoch(99)), Epoch(100));
    // The annotation is not a number.
    let mut invalid = read(41, Some(12));
    invalid.record.as_mut().expect("a Lease").epoch = None;
    assert_eq!(next_epoch(&invalid, Epoch(0)), Epoch(42));
}

#[tokio::test]
async fn a_predecessor_may_lead_until_its_last_possible_renewal_expires() {
    let lock = lock();
    let earlier = |record: Option<LeaseRecord>| lock.earlier(record.as_ref(), Duration::ZERO);
    assert_eq!(earlier(Some(record("other_1", 7))), MINUTE);
    assert_eq!(earlier(Some(record("", 7))), Duration::ZERO, "it released the Lease");
    assert_eq!(earlier(Some(record("me_1", 7))), Duration::ZERO, "it is this process");
    assert_eq!(earlier(None), 2 * MINUTE, "any replica may have held a deleted Lease");
    assert_eq!(lock.earlier(None, 5 * MINUTE), 5 * MINUTE);
    // A holder that took over from a hung leader and released does not end that leader's term.
    let mut behind = record("", 8);
    behind.earlier = MINUTE / 2;
    assert_eq!(earlier(Some(behind)), MINUTE / 2);
    let mut behind = record("other_1", 8);
    behind.earlier = 3 * MINUTE;
    assert_eq!(earlier(Some(behind)), 3 * MINUTE);
}

#[tokio::test]
async fn a_lease_keeps_its_cell_and_an_unreadable_one_begins_none() {
    let lock = lock();
    let read = |cell: Option<&str>| {
        let mut record = record("other_1", 7);
        let annotations = record.lease.metadata.annotations.as_mut().expect("annotations");
        annotations.remove(CELL_ANNOTATION);
        annotations.extend(cell.map(|cell| (CELL_ANNOTATION.to_owned(), cell.to_owned())));
        LeaseRead { revision: 41, record: Some(LeaseRecord::of(*record.lease).expect("a Lease")) }
    };
    let named = CellId(9).to_string();
    assert_eq!(lock.cell_of(&read(Some(&named))).expect("it is named"), CellId(9));
    let error = lock.cell_of(&read(Some("nine"))).expect_err("unreadable").to_string();
    assert!(error.contains("is \"nine\": expected 32 hexadecimal digits"), "{error}");
    let [one, other] = [(); 2].map(|()| lock.cell_of(&read(None)).expect("a new one"));
    assert_ne!(one, other, "nothing is named");
    lock.note_cell(Some(CellId(8)));
    for lost in [read(None), read(Some("nine")), LeaseRead { revision: 41, record: None }] {
        assert_eq!(lock.cell_of(&lost).expect("it was read before"), CellId(8));
    }
}

#[test]
fn reads_back_the_annotations_that_it_writes() {
    let mut lease = Lease::default();
    lease.metadata.resource_version = Some("7".into());
    annotate(&mut lease, Epoch(9), CellId(7), Some("a:1"), Duration::from_micros(1_500));
    let record = LeaseRecord::of(lease.clone()).expect("a Lease");
    assert_eq!((record.version, record.epoch, record.holder), (7, Some(Epoch(9)), None));
    assert_eq!(record.address.as_deref(), Some("a:1"));
    assert_eq!(record.earlier, Duration::from_millis(2), "rounded up");
    assert_eq!(record.cell, Some(CellId(7)));
    annotate(&mut lease, Epoch(9), CellId(7), None, Duration::ZERO);
    let record = LeaseRecord::of(lease.clone()).expect("a Lease");
    assert_eq!((record.address, record.earlier), (None, Duration::ZERO));
    lease.metadata.resource_version = Some("seven".into());
    assert!(LeaseRecord::of(lease).is_err());
}

#[test]
fn rejects_an_epoch_above_the_limit() {
    let lease = |epoch: &str| {
        let mut lease = Lease::default();
        lease.metadata.namespace = Some("ns".into());
        lease.metadata.resource_version = Some("7".into());
        annotate(&mut lease, Epoch(9), CellId(7), None, Duration::ZERO);
        let annotations = lease.metadata.annotations.as_mut().expect("annotations");
        annotations.insert(EPOCH_ANNOTATION.to_owned(), epoch.to_owned());
        lease
    };
    let highest = LeaseRecord::of(lease(&EPOCH_MAX.0.to_string())).expect("a Lease");
    let read = LeaseRead { revision: 7, record: Some(highest) };
    assert_eq!(next_epoch(&read, Epoch(0)), EPOCH_MAX.next());
    for epoch in [u64::MAX, EPOCH_MAX.0 + 1] {
        let error = LeaseRecord::of(lease(&epoch.to_string())).expect_err("it is too high");
        let text = error.to_string();
        assert!(text.contains(&format!("is {epoch}, and at most {EPOCH_MAX}")), "{text}");
        let command = format!("kubectl annotate lease {LEASE} -n ns {EPOCH_ANNOTATION}-");
        assert!(text.contains(&command), "{text}");
    }
}

#[test]
fn a_duration_is_written_in_whole_seconds_and_never_shortened() {
    assert_eq!(whole_seconds(Duration::from_millis(1)), 1);
    assert_eq!(whole_seconds(Duration::from_millis(4_001)), 5);
    assert_eq!(whole_seconds(Duration::ZERO), 1);
    assert_eq!(whole_seconds(Duration::MAX), i32::MAX);
}
