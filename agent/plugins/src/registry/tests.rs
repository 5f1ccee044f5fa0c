//! The registry's decisions, with time and sockets made up.

use std::path::Path;
use std::time::Duration;

use tonic::Code;

use super::socket::{RETRY_MAX, RETRY_MIN};
use super::turns::{BURST, CALLS_MAX, GAP};
use super::*;
use crate::csi::NodeFacts;
use crate::scan::FileId;

const NAME: &str = "csi.example.com";

/// A registry and what it wants done.
struct RegistryUnderTest {
    registry: SocketRegistry,
    now: Instant,
    sockets: Vec<Socket>,
}

impl RegistryUnderTest {
    fn new() -> Self {
        Self { registry: SocketRegistry::default(), now: Instant::now(), sockets: Vec::new() }
    }

    fn handle(&mut self, input: RegistryInput) -> Vec<RegistryCommand> {
        self.registry.handle(self.now, input)
    }

    /// A socket appears, or is recreated; `time` is that of its file.
    fn bind(&mut self, path: &str, time: i128) -> Vec<RegistryCommand> {
        self.sockets.retain(|socket| socket.path != Path::new(path));
        let file = FileId::made_up(time);
        self.sockets.push(Socket { path: path.into(), file, changed: time });
        self.handle(RegistryInput::Sockets(self.sockets.clone()))
    }

    fn unlink(&mut self, path: &str) -> Vec<RegistryCommand> {
        self.sockets.retain(|socket| socket.path != Path::new(path));
        self.handle(RegistryInput::Sockets(self.sockets.clone()))
    }

    /// Brings a socket's plugin to the point where its driver is asked.
    fn inspects(&mut self, commands: &[RegistryCommand]) -> CommandTicket {
        let [RegistryCommand::Ask(ticket, _)] = commands else {
            panic!("one is asked: {commands:?}")
        };
        let commands = self.handle(RegistryInput::Asked(*ticket, Ok(candidate())));
        let [RegistryCommand::Inspect(ticket, _)] = commands[..] else { panic!("{commands:?}") };
        ticket
    }

    /// Registers the plugin that is asked.
    fn register(&mut self, commands: &[RegistryCommand]) {
        let ticket = self.inspects(commands);
        let commands = self.handle(RegistryInput::Inspected(ticket, Ok(inspected("n1"))));
        let Some(RegistryCommand::Confirm(ticket, _)) = commands.last() else {
            panic!("{commands:?}")
        };
        assert!(self.handle(RegistryInput::Confirmed(*ticket, Ok(()))).is_empty());
    }

    fn registered(&self) -> Option<Arc<RegisteredDriver>> {
        self.registry.plugins().drivers.get(NAME).cloned()
    }

    fn problem(&self, path: &str) -> Option<Option<String>> {
        let unregistered = self.registry.plugins().unregistered.into_iter();
        let mut found = unregistered.filter(|one| one.socket == Path::new(path));
        found.next().map(|one| one.problem)
    }
}

fn candidate() -> DriverCandidate {
    DriverCandidate { name: NAME.to_owned(), endpoint: "/plugins/csi.sock".into() }
}

fn inspected(node_id: &str) -> Inspected {
    let facts = NodeFacts { node_id: node_id.to_owned(), ..NodeFacts::default() };
    Inspected { facts, ..Inspected::default() }
}

fn unreached() -> PluginInfoError {
    PluginInfoError::Unreached(CallError::agent("GetInfo", Code::Unavailable, "connection refused"))
}

#[test]
fn driver_is_registered_before_its_plugin_is_notified_and_removed_with_its_socket() {
    let mut world = RegistryUnderTest::new();
    let commands = world.bind("/r/a", 1);
    assert_eq!(world.problem("/r/a"), Some(None));
    let ticket = world.inspects(&commands);
    assert!(world.registered().is_none());
    let commands = world.handle(RegistryInput::Inspected(ticket, Ok(inspected("n1"))));
    let [RegistryCommand::Confirm(_, path)] = &commands[..] else { panic!("{commands:?}") };
    assert_eq!(path, Path::new("/r/a"));
    let driver = world.registered().expect("registered");
    assert_eq!(driver.facts.node_id, "n1");
    assert_eq!(driver.node.socket(), Path::new("/plugins/csi.sock"));
    assert_eq!(world.problem("/r/a"), None);
    let commands = world.unlink("/r/a");
    assert!(matches!(commands[..], [RegistryCommand::Cancel(_)]), "{commands:?}");
    assert!(world.registered().is_none());
}

#[test]
fn plugin_whose_notification_fails_is_unregistered_and_retried() {
    let mut world = RegistryUnderTest::new();
    let commands = world.bind("/r/a", 1);
    let ticket = world.inspects(&commands);
    let commands = world.handle(RegistryInput::Inspected(ticket, Ok(inspected("n1"))));
    let [RegistryCommand::Confirm(ticket, _)] = commands[..] else { panic!("{commands:?}") };
    let lost = CallError::agent("NotifyRegistrationStatus", Code::Unavailable, "broken pipe");
    world.handle(RegistryInput::Confirmed(ticket, Err(lost)));
    assert!(world.registered().is_none());
    world.now = world.registry.due().expect("it is tried again");
    let commands = world.handle(RegistryInput::Tick);
    world.register(&commands);
    assert!(world.registered().is_some());
}

#[test]
fn retry_backoff_doubles_to_its_maximum_and_restarts_with_a_new_socket() {
    let mut world = RegistryUnderTest::new();
    let mut commands = world.bind("/r/a", 1);
    let mut wait = RETRY_MIN;
    for _ in 0..15 {
        let [RegistryCommand::Ask(ticket, _)] = commands[..] else { panic!("{commands:?}") };
        assert!(world.handle(RegistryInput::Asked(ticket, Err(unreached()))).is_empty());
        assert_eq!(world.registry.due(), Some(world.now + wait));
        world.now += wait - Duration::from_nanos(1);
        assert!(world.handle(RegistryInput::Tick).is_empty(), "it is too early");
        world.now += Duration::from_nanos(1);
        commands = world.handle(RegistryInput::Tick);
        wait = (wait * 2).min(RETRY_MAX);
    }
    assert_eq!(wait, RETRY_MAX);
    let text = world.problem("/r/a").flatten().expect("a problem");
    assert!(text.ends_with("rpc error: code = Unavailable desc = connection refused"), "{text}");
    let commands = world.bind("/r/a", 2);
    let [RegistryCommand::Cancel(_), RegistryCommand::Ask(ticket, _)] = commands[..] else {
        panic!("{commands:?}")
    };
    world.handle(RegistryInput::Asked(ticket, Err(unreached())));
    assert_eq!(world.registry.due(), Some(world.now + RETRY_MIN));
}

#[test]
fn refused_plugin_receives_the_reason() {
    let mut world = RegistryUnderTest::new();
    let commands = world.bind("/r/a", 1);
    let [RegistryCommand::Ask(ticket, _)] = commands[..] else { panic!("{commands:?}") };
    let refusal = RegistrationRefusal::NotSupported("DRAPlugin".to_owned());
    let commands = world.handle(RegistryInput::Asked(ticket, Err(refusal.clone().into())));
    let [RegistryCommand::Refuse(_, why)] = &commands[..] else { panic!("{commands:?}") };
    assert_eq!(*why, refusal.to_string());
    world.now = world.registry.due().expect("it is tried again");
    let commands = world.handle(RegistryInput::Tick);
    let ticket = world.inspects(&commands);
    let refused = InspectError::Facts(RefusedFacts::NoNodeId);
    let commands = world.handle(RegistryInput::Inspected(ticket, Err(refused)));
    let [RegistryCommand::Refuse(_, why)] = &commands[..] else { panic!("{commands:?}") };
    assert!(why.contains("driverNodeID must not be empty"), "{why}");
    assert!(world.registered().is_none());
}

#[test]
fn older_duplicate_socket_is_refused_and_registered_once_the_newer_is_removed() {
    let mut world = RegistryUnderTest::new();
    let commands = world.bind("/r/new", 5);
    world.register(&commands);
    for time in [3, 4] {
        let commands = world.bind("/r/old", time);
        let ticket = match commands[..] {
            [RegistryCommand::Ask(ticket, _)] => ticket,
            _ => panic!("{commands:?}"),
        };
        let commands = world.handle(RegistryInput::Asked(ticket, Ok(candidate())));
        let [RegistryCommand::Refuse(path, why)] = &commands[..] else { panic!("{commands:?}") };
        assert_eq!(path, Path::new("/r/old"));
        assert!(why.contains("already registered by the newer socket /r/new"), "{why}");
        assert_eq!(world.registry.due(), None, "no clock helps it");
    }
    let first = world.registered().expect("registered").registration;
    let commands = world.unlink("/r/new");
    world.register(&commands);
    assert_ne!(world.registered().expect("registered").registration, first);
}

#[test]
fn newer_duplicate_socket_takes_over_the_name_without_a_gap() {
    let mut world = RegistryUnderTest::new();
    let commands = world.bind("/r/old", 1);
    world.register(&commands);
    let before = world.registry.plugins();
    let commands = world.bind("/r/new", 2);
    let ticket = world.inspects(&commands);
    assert_eq!(world.registered().map(|driver| driver.registration), Some(1), "until it is known");
    let commands = world.handle(RegistryInput::Inspected(ticket, Ok(inspected("n2"))));
    assert!(matches!(commands[..], [RegistryCommand::Confirm(..)]), "{commands:?}");
    let changes = crate::changes(&before, &world.registry.plugins());
    assert!(
        matches!(&changes[..], [crate::DriverChange::Registered(driver)] if driver.facts.node_id == "n2")
    );
    assert!(world.problem("/r/old").is_some());
    // The end of the old plugin changes nothing.
    world.unlink("/r/old");
    assert_eq!(world.registered().map(|driver| driver.registration), Some(2));
}

#[test]
fn newer_of_two_concurrent_sockets_wins_the_name_in_either_response_order() {
    for is_newer_first in [true, false] {
        let mut world = RegistryUnderTest::new();
        let commands = world.bind("/r/old", 1);
        let old = world.inspects(&commands);
        let commands = world.bind("/r/new", 2);
        let new = world.inspects(&commands);
        let (first, second) = if is_newer_first { (new, old) } else { (old, new) };
        world.handle(RegistryInput::Inspected(first, Ok(inspected("n"))));
        world.handle(RegistryInput::Inspected(second, Ok(inspected("n"))));
        assert!(world.problem("/r/old").flatten().is_some());
        assert_eq!(world.problem("/r/new"), None);
        assert!(world.registered().is_some());
    }
}

#[test]
fn responses_for_a_replaced_socket_are_ignored() {
    let mut world = RegistryUnderTest::new();
    let commands = world.bind("/r/a", 1);
    let [RegistryCommand::Ask(ticket, _)] = commands[..] else { panic!("{commands:?}") };
    let commands = world.bind("/r/a", 2);
    let [RegistryCommand::Cancel(cancelled), RegistryCommand::Ask(..)] = commands[..] else {
        panic!("{commands:?}")
    };
    assert_eq!(cancelled, ticket);
    assert!(world.handle(RegistryInput::Asked(ticket, Ok(candidate()))).is_empty());
    assert!(world.handle(RegistryInput::Inspected(ticket, Ok(inspected("n")))).is_empty());
    assert!(world.handle(RegistryInput::Confirmed(ticket, Ok(()))).is_empty());
    assert!(world.registered().is_none());
}

#[test]
fn refreshed_facts_are_those_of_that_registration_only() {
    let mut world = RegistryUnderTest::new();
    let commands = world.bind("/r/a", 1);
    world.register(&commands);
    world.handle(RegistryInput::Refreshed(1, inspected("other")));
    assert_eq!(world.registered().expect("registered").facts.node_id, "other");
    world.handle(RegistryInput::Refreshed(7, inspected("late")));
    assert_eq!(world.registered().expect("registered").facts.node_id, "other");
}

/// The sockets that commands ask.
fn asked(commands: &[RegistryCommand]) -> Vec<PathBuf> {
    let ask = |command: &RegistryCommand| match command {
        RegistryCommand::Ask(_, path) => Some(path.clone()),
        _ => None,
    };
    commands.iter().filter_map(ask).collect()
}

/// Goes on to the next moment at which the registry is due; returns the sockets that it asks.
fn next_turn(world: &mut RegistryUnderTest) -> Vec<PathBuf> {
    world.now = world.registry.due().expect("sockets wait").max(world.now);
    let commands = world.handle(RegistryInput::Tick);
    asked(&commands)
}

#[test]
fn a_flood_of_sockets_that_hang_is_asked_little_by_little() {
    let mut world = RegistryUnderTest::new();
    let flood: Vec<Socket> = (0..400)
        .map(|at| Socket {
            path: format!("/r/flood-{at:03}").into(),
            file: FileId::made_up(at),
            changed: at,
        })
        .collect();
    let begun = world.now;
    let commands = world.handle(RegistryInput::Sockets(flood));
    let mut all = asked(&commands);
    assert_eq!(all.len(), CALLS_MAX, "as many at once");
    while all.len() < 400 {
        let more = next_turn(&mut world);
        assert!(!more.is_empty() && more.len() <= CALLS_MAX, "{}", more.len());
        all.extend(more);
        let gaps = (world.now - begun).as_nanos() / GAP.as_nanos();
        let most = usize::try_from(gaps).expect("few") + BURST as usize + 1;
        assert!(all.len() <= most, "{} of {most}", all.len());
    }
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 400, "each once, although none has answered");
}

#[test]
fn a_plugin_that_comes_amid_a_flood_is_asked_within_two_turns() {
    let mut world = RegistryUnderTest::new();
    for at in 0..200 {
        world.bind(&format!("/r/flood-{at:03}"), at);
    }
    assert!(world.registry.due().is_some(), "the flood waits");
    let mut turns = asked(&world.bind("/r/aaa-driver", 500));
    while turns.len() < 2 {
        turns.extend(next_turn(&mut world));
    }
    assert!(turns[..2].contains(&PathBuf::from("/r/aaa-driver")), "{:?}", &turns[..2]);
}

#[test]
fn a_plugin_that_failed_is_asked_again_while_new_sockets_keep_coming() {
    let mut world = RegistryUnderTest::new();
    let commands = world.bind("/r/driver", 1);
    let [RegistryCommand::Ask(ticket, _)] = commands[..] else { panic!("{commands:?}") };
    world.handle(RegistryInput::Asked(ticket, Err(unreached())));
    world.now += RETRY_MIN;
    let mut turns = 0;
    for at in 0.. {
        // Two new ones for each turn: there are ever more that have not failed.
        let mut commands = world.bind(&format!("/r/a-{at}"), 2 + at);
        commands.extend(world.bind(&format!("/r/b-{at}"), 2 + at));
        let mut now = asked(&commands);
        now.extend(next_turn(&mut world));
        turns += now.len();
        if now.contains(&PathBuf::from("/r/driver")) {
            break;
        }
        assert!(turns < 400, "it is never asked again");
    }
}

#[test]
fn calls_that_ended_make_room_at_once_within_the_burst() {
    let mut world = RegistryUnderTest::new();
    for at in 0..40 {
        let commands = world.bind(&format!("/r/fails-{at:02}"), at);
        let asked_now = asked(&commands).len();
        assert_eq!(asked_now, usize::from(at < i128::from(BURST) + 1), "{at}");
        for command in commands {
            let RegistryCommand::Ask(ticket, _) = command else { panic!("{command:?}") };
            world.handle(RegistryInput::Asked(ticket, Err(unreached())));
        }
    }
    assert_eq!(world.registry.due(), Some(world.now + GAP), "then with a gap");
}
