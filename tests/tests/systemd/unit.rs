//! A unit file of `deploy/systemd`, read and run as systemd does it, as far as these files ask for
//! it: only what they say is known here, and anything else in them is a failure.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tests::process::{HANG, until_ok, within};

/// A machine's `/`, in a folder: where the files of an installation are.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) root: PathBuf,
    /// The ports of the files, and those that are taken instead.
    pub(crate) ports: BTreeMap<u16, u16>,
}

impl Machine {
    /// A text of a unit or its environment, with this machine's paths and ports.
    pub(crate) fn place(&self, text: &str) -> String {
        let root = self.root.display();
        let mut placed = text
            .replace("/usr/local/bin", &format!("{root}/usr/local/bin"))
            .replace("/etc/", &format!("{root}/etc/"));
        for (port, own) in &self.ports {
            placed = placed.replace(&format!("127.0.0.1:{port}"), &format!("127.0.0.1:{own}#"));
        }
        placed.replace('#', "")
    }

    /// `%S`.
    pub(crate) fn state(&self) -> PathBuf {
        self.root.join("var/lib")
    }
}

/// An instance of a unit.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) name: String,
    /// How often it was started because it had ended.
    pub(crate) restarts: u32,
    instance: String,
    values: BTreeMap<String, Vec<String>>,
    machine: Machine,
    starts: u32,
    main: Option<Child>,
    restart_at: Option<Instant>,
}

impl Service {
    /// The service `TEMPLATE@INSTANCE`, as its unit is installed on the machine.
    pub(crate) fn new(name: &str, machine: &Machine) -> Self {
        let (template, instance) = name.split_once('@').expect("an instance");
        let file = machine.root.join(format!("etc/systemd/system/{template}@.service"));
        let text = std::fs::read_to_string(file).expect("a unit");
        let mut values: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut section = "";
        for line in text.lines().map(str::trim) {
            if line.is_empty() || line.starts_with(['#', ';']) {
                continue;
            }
            if line.starts_with('[') {
                section = line;
                continue;
            }
            let (key, value) = line.split_once('=').unwrap_or_else(|| panic!("{line}"));
            let value = value.replace("%i", instance);
            let value = value.replace("%S", machine.state().to_str().expect("UTF-8"));
            assert!(!value.contains('%'), "a specifier that this test does not know: {line}");
            values.entry(format!("{section}{key}")).or_default().push(machine.place(&value));
        }
        Self {
            name: name.to_owned(),
            restarts: 0,
            instance: instance.to_owned(),
            values,
            machine: machine.clone(),
            starts: 0,
            main: None,
            restart_at: None,
        }
    }

    fn all(&self, key: &str) -> &[String] {
        self.values.get(&format!("[Service]{key}")).map_or(&[], Vec::as_slice)
    }

    /// The last value of a setting, as it counts.
    pub(crate) fn setting(&self, key: &str) -> &str {
        self.all(key).last().unwrap_or_else(|| panic!("{} sets no {key}", self.name))
    }

    /// `Environment=` and the files of `EnvironmentFile=`.
    pub(crate) fn environment(&self) -> BTreeMap<String, String> {
        let mut all: Vec<String> = self.all("Environment").to_vec();
        for file in self.all("EnvironmentFile") {
            let text = std::fs::read_to_string(file).unwrap_or_else(|why| panic!("{file}: {why}"));
            let set = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
            all.extend(set.map(|line| self.machine.place(line)));
        }
        let pair = |line: &String| {
            let (name, value) = line.split_once('=').unwrap_or_else(|| panic!("{line}"));
            (name.to_owned(), value.to_owned())
        };
        all.iter().map(pair).collect()
    }

    /// `ExecStart=` in words; `$NAME` as a word of its own is split at spaces.
    fn command(&self) -> Vec<String> {
        let environment = self.environment();
        let mut words = Vec::new();
        for word in self.setting("ExecStart").split_whitespace() {
            match word.strip_prefix('$') {
                Some(name) => {
                    let value = environment.get(name).unwrap_or_else(|| panic!("no {name}"));
                    words.extend(value.split_whitespace().map(str::to_owned));
                }
                None => words.push(word.to_owned()),
            }
        }
        words
    }

    /// What `systemctl start` does.
    pub(crate) fn start(&mut self) {
        assert!(self.main.is_none(), "{} runs", self.name);
        assert_eq!(self.setting("Type"), "exec");
        let state = self.machine.state().join(self.setting("StateDirectory"));
        std::fs::create_dir_all(&state).expect("its state folder");
        self.starts += 1;
        let words = self.command();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).envs(self.environment()).env("INVOCATION_ID", self.invocation());
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("LEASEHOLD_") {
                // What the user's shell sets is not in a service's environment.
                let name = name.to_string_lossy().into_owned();
                if !self.environment().contains_key(&name) {
                    command.env_remove(name);
                }
            }
        }
        if let Some(folder) = self.all("WorkingDirectory").last() {
            command.current_dir(folder);
        }
        let log = self.log_file();
        let twin = log.try_clone().expect("the log is opened twice");
        command.stdin(Stdio::null()).stdout(log).stderr(twin).process_group(0);
        self.main = Some(command.spawn().unwrap_or_else(|why| panic!("{words:?}: {why}")));
    }

    /// What systemd does meanwhile: a service that has ended by itself is started again.
    pub(crate) fn look_after(&mut self) {
        if let Some(main) = &mut self.main
            && let Some(status) = main.try_wait().expect("its state")
        {
            // What the main process leaves is killed.
            self.main = None;
            self.kill_all();
            if self.lists("RestartPreventExitStatus", status) {
                return;
            }
            assert_eq!(
                self.setting("Restart"),
                "always",
                "{}: systemd does not restart it",
                self.name
            );
            self.restart_at = Some(Instant::now() + span(self.setting("RestartSec")));
        }
        if self.restart_at.is_some_and(|at| Instant::now() >= at) {
            self.restart_at = None;
            self.restarts += 1;
            self.start();
        }
    }

    /// What `systemctl stop` does. Returns whether the unit has not failed by it.
    pub(crate) fn stop(&mut self) -> bool {
        self.restart_at = None;
        let Some(mut main) = self.main.take() else { return true };
        let main_id = main.id();
        let signalled = match self.setting("KillMode") {
            "mixed" => vec![main_id],
            "control-group" => self.processes(),
            other => panic!("KillMode={other}"),
        };
        signalled.into_iter().for_each(|id| signal(id, Signal::TERM));
        let most = span(self.setting("TimeoutStopSec")).min(HANG);
        let status = within(most, || main.try_wait().expect("its state")).unwrap_or_else(|| {
            signal(main_id, Signal::KILL);
            main.wait().expect("it was killed")
        });
        let left = self.processes();
        self.kill_all();
        if !left.is_empty() {
            eprintln!("{} left {} processes, which were killed", self.name, left.len());
        }
        left.is_empty() && self.is_success(status)
    }

    fn is_success(&self, status: ExitStatus) -> bool {
        status.success() || self.lists("SuccessExitStatus", status)
    }

    /// Whether a setting of exit codes names this one.
    fn lists(&self, key: &str, status: ExitStatus) -> bool {
        let mut codes = self.all(key).iter().flat_map(|codes| codes.split_whitespace());
        status.code().is_some_and(|code| codes.any(|listed| listed == code.to_string()))
    }

    /// Whether none of its processes runs and none will be started.
    pub(crate) fn rests(&self) -> bool {
        self.main.is_none() && self.restart_at.is_none()
    }

    /// Whether its log has a text.
    pub(crate) fn has_said(&self, text: &str) -> bool {
        std::fs::read_to_string(self.log_path()).is_ok_and(|log| log.contains(text))
    }

    /// The main process.
    pub(crate) fn main(&self) -> u32 {
        self.main.as_ref().expect("it runs").id()
    }

    /// What of it runs, by its environment: a service's control group.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let mark = format!("INVOCATION_ID={}\0", self.invocation());
        let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
        let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        ids.filter(|id| {
            let environment = std::fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
            String::from_utf8_lossy(&environment).contains(&mark)
        })
        .collect()
    }

    fn kill_all(&self) {
        until_ok(&format!("the end of all processes of {}", self.name), || {
            let left = self.processes();
            left.iter().for_each(|id| signal(*id, Signal::KILL));
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?} do not die")) }
        });
    }

    fn invocation(&self) -> String {
        format!("{}-{}-{}", self.machine.root.display(), self.name, self.starts)
    }

    fn log_path(&self) -> PathBuf {
        self.machine.root.join(format!("{}.log", self.name))
    }

    fn log_file(&self) -> File {
        let mut options = OpenOptions::new();
        options.create(true).append(true).open(self.log_path()).expect("its log")
    }

    /// The worker's folder.
    pub(crate) fn worker_folder(&self) -> PathBuf {
        self.machine.state().join("leasehold-agent").join(&self.instance)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.log_path()).unwrap_or_default();
            eprintln!("--- {}\n{log}", self.name);
        }
        if let Some(mut main) = self.main.take() {
            let _ = main.kill();
            let _ = main.wait();
        }
        self.kill_all();
    }
}

fn signal(id: u32, signal: Signal) {
    let pid = i32::try_from(id).ok().and_then(Pid::from_raw).expect("a process id");
    // It may have ended by now.
    let _ = kill_process(pid, signal);
}

/// A span as systemd writes it, with one unit.
pub(crate) fn span(text: &str) -> Duration {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().unwrap_or_else(|_| panic!("no span: {text}"));
    match &text[digits.len()..] {
        "s" => Duration::from_secs(number),
        "m" | "min" => Duration::from_secs(number * 60),
        unit => panic!("{text}: the unit {unit}"),
    }
}
