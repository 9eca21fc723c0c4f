//! Tests of the server, with clients in this process.

use std::os::fd::AsFd;

use linerate_core::memory::{Pool, Region, RegionOptions};
use linerate_core::offload::LONGEST;
use linerate_core::port::{Device, Opening, Port, PortName, PortOpener};
use linerate_testkit::{Deadline, until};

use super::connections::most_connections;
use super::request_handler::RequestHandler;
use super::served::SWITCH_SLOTS;
use super::session::Running;
use super::*;
use crate::share::protocol::layout::{Objects, Offsets, Plan};
use crate::share::protocol::message::{MemoryChoice, OpenRequest, Opened, Reply, Request, RingSelection};
use crate::share::protocol::name::base;

/// Opens ports by this crate's own kinds. Those of `linerate` are another build of this crate, which has other
/// switches.
struct Kinds(linerate::Options);

impl PortOpener for Kinds {
    fn open(&self, name: &str, pool: &Arc<Pool>) -> Result<Box<dyn Device>> {
        let kinds = [&crate::VALE, &crate::PIPE, &crate::MONITOR, &crate::NETMAP];
        let name = PortName::parse_among(name, &kinds.map(|kind| &kind.description))?;
        let config = self.0.clone().of_name(&name, pool.clone())?;
        let kind = kinds.into_iter().find(|kind| std::ptr::eq(&kind.description, name.kind())).unwrap();
        (kind.open)(Opening { name: &name, config, opener: self })
    }

    fn open_isolated(&self, name: &str, pool: Arc<Pool>) -> Result<Box<dyn Device>> {
        self.open(name, &pool)
    }
}

/// Creates a server of ports in memory, as `linerate::server` does.
pub(super) fn server() -> Server {
    Server::new(Box::new(|name, rings| {
        let ring = rings.rx_slots.clamp(64, 4096).next_power_of_two() as usize;
        let buffers = (2 * usize::from(rings.rx.max(1) + rings.tx.max(1)) * ring).max(4096);
        let pool = Pool::new(Region::lazy(&RegionOptions { buffers, ..RegionOptions::default() })?);
        let options = linerate::Options {
            rx_queues: rings.rx.max(1),
            tx_queues: rings.tx.max(1),
            ring: Some(ring),
            max_frame: LONGEST,
            interrupts: Some(Duration::ZERO),
            local: true,
            timestamps: name.contains(['^', '/', '?']),
            ..linerate::Options::default()
        };
        Ok(Port::of(Kinds(options).open(name, &pool)?))
    }))
}

/// A user other than root and the server's own.
const STRANGER: u32 = 12_345;

fn own() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// A client's connection.
struct Client {
    handler: RequestHandler,
    running: Option<Running>,
    theirs: Connection,
}

fn session(server: &Server, user: u32, only: Option<&str>) -> Client {
    let [ours, theirs] = Connection::pair().unwrap();
    let number = server.state.next.fetch_add(1, Ordering::Relaxed) + 1000;
    let (state, only) = (server.state.clone(), only.map(str::to_string));
    let handler = RequestHandler { state, connection: Arc::new(ours), number, user, process: 1, only };
    Client { handler, running: None, theirs }
}

impl Client {
    /// Closes the client's port.
    fn close(&mut self) {
        self.running.take().iter_mut().for_each(Running::end);
    }

    fn pump(&self) -> &crate::share::server::pump::Pump {
        self.running.as_ref().unwrap().pump.as_ref().unwrap()
    }

    /// Returns the server's description of the port.
    fn opened(&self) -> Box<Opened> {
        match self.theirs.reply().unwrap().0 {
            Reply::Opened(opened) => opened,
            reply => panic!("{reply:?}"),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.close();
    }
}

fn ask(client: &mut Client, request: Request) -> std::result::Result<Reply, i32> {
    if let Request::Open { wanted, memory } = request {
        if client.running.is_some() {
            return Err(libc::EBUSY);
        }
        let running = client.handler.open_for(&wanted, &memory).map_err(|error| error.errno())?;
        client.running = running;
        return Ok(Reply::Done { number: 0 });
    }
    client.handler.answer(request, Vec::new()).map(|(reply, _)| reply).map_err(|error| error.errno())
}

fn wanted(name: &str) -> OpenRequest {
    OpenRequest { name: name.to_string(), ..OpenRequest::default() }
}

fn open(session: &mut Client, name: &str) -> std::result::Result<Reply, i32> {
    ask(session, open_request(wanted(name)))
}

fn open_request(wanted: OpenRequest) -> Request {
    Request::Open { wanted, memory: MemoryChoice::default() }
}

fn info(session: &mut Client, name: &str) -> std::result::Result<RingCounts, i32> {
    match ask(session, Request::Info { name: name.to_string() })? {
        Reply::Info { rings } => Ok(rings),
        reply => panic!("{reply:?}"),
    }
}

fn header(session: &mut Client, name: &str, set: Option<usize>) -> std::result::Result<u32, i32> {
    match ask(session, Request::Header { name: name.to_string(), set })? {
        Reply::Done { number } => Ok(number),
        reply => panic!("{reply:?}"),
    }
}

fn create(name: &str) -> Request {
    Request::Create { name: name.to_string(), rings: RingCounts::default() }
}

fn attach(switch: &str, port: &str) -> Request {
    Request::Attach { switch: switch.to_string(), port: port.to_string(), host: false, rings: RingCounts::default() }
}

fn detach(switch: &str, port: &str) -> Request {
    Request::Detach { switch: switch.to_string(), port: port.to_string() }
}

fn listed(session: &mut Client) -> Vec<(String, u8)> {
    match ask(session, Request::List).unwrap() {
        Reply::List(list) => list.into_iter().map(|port| (port.name, port.number)).collect(),
        reply => panic!("{reply:?}"),
    }
}

#[test]
fn only_root_and_the_server_s_user_manage() {
    let server = server();
    let mut stranger = session(&server, STRANGER, None);
    for request in [
        attach("vale80", "last80"),
        detach("vale80", "last80"),
        create("last80"),
        Request::Destroy { name: "last80".to_string() },
    ] {
        assert_eq!(ask(&mut stranger, request).unwrap_err(), libc::EPERM);
    }
    assert!(lock(&server.state.persistent).is_empty());
    for user in [0, own()] {
        let mut manager = session(&server, user, None);
        assert!(ask(&mut manager, create("last80")).is_ok());
        assert!(ask(&mut manager, Request::Destroy { name: "last80".to_string() }).is_ok());
    }
}

/// These tests open no real interface: no interface of this machine has that name.
#[test]
fn an_interface_is_for_managers_and_at_a_socket_of_its_own() {
    const NONE: &str = "linerate_none";
    let server = server();
    let opened = |user: u32, only: Option<&str>, name: &str| open(&mut session(&server, user, only), name).unwrap_err();
    assert_eq!(opened(STRANGER, None, NONE), libc::EPERM);
    for (user, only) in [(0, None), (own(), None), (STRANGER, Some(NONE))] {
        assert_ne!(opened(user, only, NONE), libc::EPERM);
    }
    // A persistent port is not an interface.
    ask(&mut session(&server, 0, None), create("last81")).unwrap();
    assert_eq!(opened(STRANGER, None, "last81"), libc::ENXIO);
    assert!(open(&mut session(&server, STRANGER, None), "vale81:a").is_ok());
    assert!(open(&mut session(&server, STRANGER, None), "pipe81{1").is_ok());
}

#[test]
fn a_socket_for_one_name_is_for_no_other() {
    let server = server();
    let mut manager = session(&server, own(), Some("vale82"));
    assert!(info(&mut manager, "vale82:a").is_ok());
    for name in ["vale83:a", "vale8:a", "last82", "a{1", "0000:03:00.0"] {
        assert_eq!(info(&mut manager, name).unwrap_err(), libc::ENXIO, "{name}");
        assert_eq!(header(&mut manager, name, None).unwrap_err(), libc::ENXIO, "{name}");
        assert_eq!(open(&mut manager, name).unwrap_err(), libc::ENXIO, "{name}");
    }
    assert_eq!(ask(&mut manager, create("last82")).unwrap_err(), libc::ENXIO);
    // Cards are also refused at the socket for all names.
    assert_eq!(open(&mut session(&server, 0, None), "0000:03:00.0").unwrap_err(), libc::ENXIO);
    let names = ["vale1:a", "vale1:a{2", "eth0", "eth0^", "eth0/r", "eth0*", "eth0+", "eth0{1", "eth0}1", "", ":"];
    let bases = ["vale1", "vale1", "eth0", "eth0", "eth0", "eth0", "eth0", "eth0", "eth0", "", ":"];
    assert_eq!(names.map(base), bases);
}

#[test]
fn only_a_port_s_user_and_managers_set_its_header() {
    let server = server();
    let mut user = session(&server, STRANGER, None);
    assert_eq!(header(&mut user, "vale84:a", None).unwrap_err(), libc::ENXIO, "no client has it open");
    let asks = |takes_header: bool| {
        open_request(OpenRequest { selection: RingSelection::None, takes_header, ..wanted("vale84:a") })
    };
    ask(&mut user, asks(false)).unwrap();
    assert_eq!(header(&mut user, "vale84:a", None), Ok(0));
    for len in [1, 9, 11, 13, 4096, usize::MAX] {
        assert_eq!(header(&mut user, "vale84:a", Some(len)).unwrap_err(), libc::EINVAL, "{len}");
    }
    let mut other = session(&server, STRANGER + 1, None);
    assert_eq!(header(&mut other, "vale84:a", Some(10)).unwrap_err(), libc::EPERM);
    assert_eq!(header(&mut other, "vale84:a", None), Ok(0));
    for (user, len) in [(STRANGER, 12), (0, 10), (own(), 12)] {
        let mut user = session(&server, user, None);
        assert_eq!(header(&mut user, "vale84:a", Some(len)), Ok(len as u32));
        assert_eq!(header(&mut user, "vale84:a", None), Ok(len as u32));
    }
    // A client that does not support headers is refused; one that does is admitted.
    let mut second = session(&server, STRANGER, None);
    assert_eq!(open(&mut second, "vale84:a").unwrap_err(), libc::EIO);
    assert!(ask(&mut second, open_request(OpenRequest { takes_header: true, ..wanted("vale84:a") })).is_ok());
    // A pipe has no header.
    let mut end = session(&server, STRANGER, None);
    open(&mut end, "pipe84{1").unwrap();
    for name in ["pipe84{1", "pipe84}1"] {
        assert_eq!(header(&mut end, name, None), Ok(0));
        assert!(header(&mut end, name, Some(10)).is_err());
    }
    ask(&mut session(&server, 0, None), create("last84")).unwrap();
    ask(&mut session(&server, 0, None), attach("vale85", "last84")).unwrap();
    let mut persistent = session(&server, 0, None);
    open(&mut persistent, "last84").unwrap();
    assert_eq!(header(&mut persistent, "last84", Some(10)).unwrap_err(), libc::ENXIO);
}

#[test]
fn a_port_is_shared_if_asked_for_and_an_exclusive_one_is_alone() {
    let server = server();
    let mut first = session(&server, own(), None);
    open(&mut first, "vale86:a").unwrap();
    let alone = || open_request(OpenRequest { exclusive: true, ..wanted("vale86:a") });
    let mut second = session(&server, own(), None);
    assert_eq!(ask(&mut second, alone()).unwrap_err(), libc::EBUSY);
    assert_eq!(open(&mut second, "vale86:a").unwrap_err(), libc::EBUSY, "its rings are taken");
    // Another descriptor of the same user may share the rings if it was opened in the same way.
    let shares = |selection: RingSelection| open_request(OpenRequest { shares: true, selection, ..wanted("vale86:a") });
    assert_eq!(ask(&mut second, shares(RingSelection::One(0))).unwrap_err(), libc::EBUSY);
    assert_eq!(ask(&mut session(&server, STRANGER, None), shares(RingSelection::All)).unwrap_err(), libc::EPERM);
    ask(&mut second, shares(RingSelection::All)).unwrap();
    assert!(second.running.is_none(), "there is one session");
    let (mine, theirs) = (first.opened(), second.opened());
    assert_eq!((&mine.layout.tx, &mine.layout.rx), (&theirs.layout.tx, &theirs.layout.rx));
    assert_ne!(mine.layout.at, theirs.layout.at, "with a description each");
    assert_eq!(ask(&mut session(&server, own(), None), alone()).unwrap_err(), libc::EBUSY);
    first.close();
    let mut third = session(&server, own(), None);
    ask(&mut third, alone()).unwrap();
    assert_eq!(ask(&mut second, shares(RingSelection::All)).unwrap_err(), libc::EBUSY);
    third.close();
    open(&mut second, "vale86:a").unwrap();
}

/// A session lasts until its last connection has ended. To wake its clients, it sends a token to each connection.
#[test]
fn a_session_lasts_as_long_as_one_of_its_descriptors() {
    let server = server();
    let mut first = session(&server, own(), None);
    let request = || open_request(OpenRequest { shares: true, ..wanted("vale79:a") });
    ask(&mut first, request()).unwrap();
    let mut second = session(&server, own(), None);
    ask(&mut second, request()).unwrap();
    first.opened();
    second.opened();
    let running = first.running.take().unwrap();
    let listen = || running.session.listen(&server.state);
    running.session.notify();
    assert!(first.theirs.has_news() && second.theirs.has_news());
    second.theirs.notify();
    let signals = listen();
    assert!(signals.token && !signals.is_over);
    first.theirs.end();
    assert!(!listen().is_over);
    // Another request through a descriptor is refused; so is a malformed one.
    second.theirs.send(&Request::List, &[]).unwrap();
    assert!(!listen().is_over);
    assert!(matches!(second.theirs.reply(), Ok((Reply::Refused(error), _)) if error.errno() == libc::EBUSY));
    second.theirs.end();
    assert!(listen().is_over);
    let mut late = session(&server, own(), None);
    assert!(!running.session.join(1, &late.handler.connection, lease(&running)), "it is over");
    drop(running);
    late.close();
}

fn lease(running: &Running) -> crate::share::server::netmap_memory::Lease {
    crate::share::server::netmap_memory::Lease::of_rings(&running.session.memory, Vec::new())
}

/// Only the owner of a descriptor gets the port.
#[test]
fn a_descriptor_is_identified_by_a_proof() {
    let server = server();
    let mut client = session(&server, own(), None);
    open(&mut client, "vale78:a").unwrap();
    let opened = client.opened();
    let its = client.running.as_ref().unwrap().session.clone();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let deadline = Deadline::begin();
            while !stop.load(Ordering::Relaxed) {
                deadline.check(|| "the end of the test");
                its.listen(&server.state);
                std::thread::yield_now();
            }
        });
        let other = session(&server, STRANGER, None);
        let adopt = |descriptor: &Connection| {
            let descriptor = descriptor.as_fd().try_clone_to_owned().unwrap();
            other.handler.answer(Request::Adopt, vec![descriptor]).map_err(|error| error.errno())
        };
        let (reply, memory) = adopt(&client.theirs).unwrap();
        assert!(matches!(reply, Reply::Opened(there) if there.layout == opened.layout && memory.len() == 1));
        // Descriptors of other sockets, and one whose other end is closed.
        let [mine, yours] = Connection::pair().unwrap();
        assert_eq!(adopt(&mine).map(drop), Err(libc::ENXIO));
        assert!(matches!(yours.next(), Ok(crate::share::protocol::connection::Message::Proof(_))));
        yours.end();
        assert_eq!(adopt(&mine).map(drop), Err(libc::ENXIO));
        assert_eq!(
            other.handler.answer(Request::Adopt, Vec::new()).map(drop).map_err(|e| e.errno()),
            Err(libc::EINVAL)
        );
        let file: OwnedFd = fs::File::open("/dev/null").unwrap().into();
        let none = other.handler.answer(Request::Adopt, vec![file]).map(drop).map_err(|e| e.errno());
        assert_eq!(none, Err(libc::ENXIO));
        stop.store(true, Ordering::Relaxed);
    });
}

/// The process number is the client's choice; a child of fork(2) uses its parent's.
#[test]
fn a_user_cannot_take_the_place_of_another_users_process() {
    let server = server();
    let opens = |user: u32, name: &str| {
        let mut client = session(&server, user, None);
        let memory = MemoryChoice { number: 1, process: 99, ..MemoryChoice::default() };
        ask(&mut client, Request::Open { wanted: wanted(name), memory }).unwrap();
        assert_eq!(client.opened().number, 1, "in its own process");
        (client.running.as_ref().unwrap().session.opened.number, client)
    };
    let (first, _a) = opens(STRANGER, "vale72:a");
    let (other, _b) = opens(STRANGER + 1, "vale72:b");
    let (again, _c) = opens(STRANGER, "vale72:c");
    assert!(first == again && first != other, "{first} {again} {other}");
}

#[test]
fn one_users_memory_leaves_others_theirs() {
    let server = server();
    let plan = Plan { buffers: Objects { count: (1 << 21) - (1 << 14), size: 1 << 16 }, ..Plan::default() };
    assert!(plan.is_possible());
    let most = (4usize << 40) / plan.len();
    let opens = |user: u32, n: usize| {
        let mut client = session(&server, user, None);
        let memory = MemoryChoice { plan: Some(plan), ..MemoryChoice::default() };
        let opened = ask(&mut client, Request::Open { wanted: wanted(&format!("vale71:p{user}n{n}")), memory });
        opened.map(|_| client)
    };
    let mut held: Vec<Client> = (0..most).map(|n| opens(STRANGER, n).ok().unwrap()).collect();
    assert_eq!(opens(STRANGER, most).map(drop), Err(libc::ENOMEM));
    assert!(opens(STRANGER + 1, 0).is_ok());
    held.pop();
    assert!(opens(STRANGER, most).is_ok());
}

#[test]
fn one_user_does_not_take_all_ports_of_a_switch() {
    let server = server();
    let opens = |user: u32, n: usize| {
        let mut client = session(&server, user, None);
        open(&mut client, &format!("vale70:p{n}")).map(|_| client)
    };
    let half = crate::netmap::MAX_PORTS / 2;
    let mut held: Vec<Client> = (0..half).map(|n| opens(STRANGER, n).ok().unwrap()).collect();
    assert_eq!(opens(STRANGER, half).map(drop), Err(libc::ENOMEM));
    let others = crate::netmap::MAX_PORTS - crate::netmap::MAX_PORTS / 8 - half;
    held.extend((0..others).map(|n| opens(STRANGER + 1, half + n).ok().unwrap()));
    assert_eq!(opens(STRANGER + 2, 300).map(drop), Err(libc::ENOMEM));
    assert!(opens(own(), 301).is_ok(), "some are kept for managers");
    held.pop();
    assert!(opens(STRANGER + 2, 300).is_ok());
}

/// A client opens the queues of a port separately. Another user must not get queues that are still free.
#[test]
fn a_port_of_a_switch_is_its_users_own() {
    let server = server();
    let opens = |user: u32, name: &str, receives: bool| {
        let mut client = session(&server, user, None);
        let half = OpenRequest { receive_only: receives, transmit_only: !receives, ..wanted(name) };
        ask(&mut client, open_request(half)).map(|_| client)
    };
    for (owner, name) in [(STRANGER, "vale69:a"), (own(), "vale69:b")] {
        let _sends = opens(owner, name, false).ok().unwrap();
        assert_eq!(opens(STRANGER + 1, name, true).map(drop), Err(libc::EPERM), "{name}");
        assert!(opens(owner, name, true).is_ok() && opens(own(), name, true).is_ok(), "{name}");
    }
    // A persistent port is open to all users.
    let mut manager = session(&server, own(), None);
    ask(&mut manager, create("last69")).unwrap();
    ask(&mut manager, attach("vale69", "last69")).unwrap();
    let _sends = opens(STRANGER, "last69", false).ok().unwrap();
    assert!(opens(STRANGER + 1, "last69", true).is_ok());
    let _sends = opens(STRANGER, "vale69:c", false).ok().unwrap();
    server.join_users();
    assert!(opens(STRANGER + 1, "vale69:c", true).is_ok());
}

#[test]
fn memory_by_number_is_only_for_its_user() {
    let server = server();
    let mut client = session(&server, STRANGER, None);
    open(&mut client, "vale77:a").unwrap();
    let number = client.opened().number;
    assert!(number > 1);
    let pools = |user: u32, process: u32, number: u16| {
        let client = session(&server, user, None);
        let handler = RequestHandler {
            process,
            connection: client.handler.connection.clone(),
            state: server.state.clone(),
            only: None,
            ..client.handler
        };
        match handler.answer(Request::Pools { number, process: 0 }, Vec::new()).map_err(|error| error.errno())?.0 {
            Reply::Pools { number, plan } => Ok((number, plan.len())),
            reply => panic!("{reply:?}"),
        }
    };
    assert_eq!(pools(STRANGER, 5, number).unwrap().0, number);
    assert_eq!(pools(STRANGER + 1, 5, number), Err(libc::EINVAL), "another user's");
    assert_eq!(pools(STRANGER, 5, number + 100), Err(libc::EINVAL));
    for number in [0, 1] {
        assert_eq!(pools(STRANGER, 5, number), Ok((1, crate::share::protocol::layout::Plan::default().len())));
    }
    // Each process knows its own memory as number 1, and other processes' memory by other numbers.
    let of_process = |process: u32, name: &str| {
        let mut client = session(&server, STRANGER, None);
        client.handler.process = process;
        let memory = MemoryChoice { number: 1, ..MemoryChoice::default() };
        ask(&mut client, Request::Open { wanted: wanted(name), memory }).unwrap();
        assert_eq!(client.opened().number, 1);
        (client.running.as_ref().unwrap().session.opened.number, client)
    };
    let [first, second, again] =
        [(6, "vale77:d"), (7, "vale77:e"), (6, "vale77:f")].map(|(process, name)| of_process(process, name));
    assert!(first.0 > 1 && first.0 == again.0 && first.0 != second.0 && first.0 != number);
    assert_eq!((pools(STRANGER, 6, 1).unwrap().0, pools(STRANGER, 7, first.0).unwrap().0), (1, first.0));
    // A request for memory other than the pipe's is refused.
    let mut near = session(&server, STRANGER, None);
    near.handler.process = 6;
    let of_own = MemoryChoice { number: 1, ..MemoryChoice::default() };
    ask(&mut near, Request::Open { wanted: wanted("p77{1"), memory: of_own.clone() }).unwrap();
    let mut far = session(&server, STRANGER, None);
    far.handler.process = 7;
    let other_end = |memory: MemoryChoice| Request::Open { wanted: wanted("p77}1"), memory };
    assert_eq!(ask(&mut far, other_end(of_own)).unwrap_err(), libc::EINVAL);
    ask(&mut far, other_end(MemoryChoice::default())).unwrap();
    assert_eq!(far.opened().number, first.0);
    // A port may be created in this memory, which exists until its last port is closed.
    let choice = MemoryChoice { number, ..MemoryChoice::default() };
    let mut other = session(&server, STRANGER, None);
    ask(&mut other, Request::Open { wanted: wanted("vale77:b"), memory: choice.clone() }).unwrap();
    assert_eq!(other.opened().number, number);
    let stranger = Request::Open { wanted: wanted("vale77:c"), memory: choice };
    assert_eq!(ask(&mut session(&server, own(), None), stranger).unwrap_err(), libc::EINVAL);
    client.close();
    assert!(pools(STRANGER, 5, number).is_ok());
    other.close();
    assert_eq!(pools(STRANGER, 5, number), Err(libc::EINVAL));
}

/// Extra buffers use memory immediately. They are limited for all of a user's ports together; fewer are granted, as in
/// netmap.
#[test]
fn one_user_s_extra_buffers_are_bounded() {
    const MOST: u32 = quota::MAX_EXTRA_PER_USER;
    let server = server();
    let opens = |user: u32, name: &str, extra: u32| {
        let mut client = session(&server, user, None);
        let memory = MemoryChoice { extra, ..MemoryChoice::default() };
        ask(&mut client, Request::Open { wanted: wanted(name), memory }).unwrap();
        (client.opened().extra, client)
    };
    let first = opens(STRANGER, "vale67:a", MOST - 10);
    let second = opens(STRANGER, "extra67{1", u32::MAX);
    assert_eq!((first.0, second.0, opens(STRANGER, "vale67:b", 1).0), (MOST - 10, 10, 0));
    assert_eq!(opens(STRANGER + 1, "vale67:c", u32::MAX).0, MOST, "another user has a part, too");
    assert_eq!(opens(own(), "vale67:d", MOST + 1).0, MOST + 1, "managers have more");
    // The extra buffers are linked when the first connection joins, and free once the last connection has left.
    let (_, client) = first;
    let running = client.running.as_ref().unwrap().session.clone();
    client.theirs.end();
    assert!(running.listen(&server.state).is_over);
    assert_eq!(opens(STRANGER, "vale67:e", MOST).0, MOST - 10);
}

/// The request is refused after it took its buffers, because another client has the queues.
#[test]
fn a_refused_port_gives_its_extra_buffers_back() {
    let server = server();
    let memory = |extra: u32| MemoryChoice { number: 1, extra, ..MemoryChoice::default() };
    let request = |extra: u32| Request::Open { wanted: wanted("vale74:a"), memory: memory(extra) };
    let mut user = session(&server, own(), None);
    ask(&mut user, request(0)).unwrap();
    let free = || user.running.as_ref().unwrap().session.memory.free_buffers();
    let before = free();
    assert_eq!(ask(&mut session(&server, own(), None), request(100)).map(drop), Err(libc::EBUSY));
    assert_eq!(free(), before);
}

#[test]
fn a_zero_copy_monitor_has_the_port_s_memory_and_is_alone() {
    let server = server();
    let monitor =
        || open_request(OpenRequest { zero_copy: true, monitor_rx: true, monitor_tx: true, ..wanted("vale76:a") });
    let mut user = session(&server, own(), None);
    let mut first = session(&server, own(), None);
    assert_eq!(ask(&mut first, monitor()).unwrap_err(), libc::EINVAL, "no client has it open");
    open(&mut user, "vale76:a").unwrap();
    let free = || user.running.as_ref().unwrap().session.memory.free_buffers();
    let before = free();
    ask(&mut first, monitor()).unwrap();
    assert_eq!(
        (first.opened().number, free()),
        (user.opened().number, before - (SWITCH_SLOTS + served::SLOTS) as usize)
    );
    assert_eq!(ask(&mut session(&server, own(), None), monitor()).unwrap_err(), libc::EBUSY);
    assert_eq!(ask(&mut session(&server, STRANGER, None), monitor()).unwrap_err(), libc::EPERM);
    let ring = |user: &Client| user.running.as_ref().unwrap().session.receiving().next().unwrap().1;
    assert_eq!(ring(&user).monitor().unwrap().place, ring(&first).place);
    first.close();
    assert!(ring(&user).monitor().is_none() && free() == before);
    ask(&mut first, monitor()).unwrap();
    // The client is notified when the port is closed.
    let running = first.running.take().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| running.run());
        user.close();
        until("the end of the connection", || first.theirs.has_ended());
        first.theirs.end();
    });
}

/// As in netmap, a copy monitor has the rings of its port: a port of a switch, an attached port, or an end of a pipe.
#[test]
fn a_copy_monitor_has_the_rings_of_its_port() {
    let server = server();
    let rings = RingCounts { tx: 2, rx: 3, tx_slots: 64, rx_slots: 128, ..RingCounts::default() };
    let mut parents = Vec::new();
    for name in ["vale68:x", "pipe68{1"] {
        let mut parent = session(&server, own(), None);
        ask(&mut parent, open_request(OpenRequest { rings, ..wanted(name) })).unwrap();
        parents.push(parent);
    }
    let both = RingCounts { tx: 3, ..rings };
    let request =
        Request::Attach { switch: "vale68".to_string(), port: "pipe68{2".to_string(), host: false, rings: both };
    ask(&mut session(&server, own(), None), request).unwrap();
    let monitor = |name: &str, selection: RingSelection, rings: RingCounts| {
        let mut monitor = session(&server, own(), None);
        let request =
            open_request(OpenRequest { monitor_rx: true, monitor_tx: true, selection, rings, ..wanted(name) });
        ask(&mut monitor, request).map(|_| monitor.opened())
    };
    let is_there = |places: &[Option<crate::share::protocol::ring::RingAt>]| {
        places.iter().map(Option::is_some).collect::<Vec<_>>()
    };
    let unasked = RingCounts::default();
    for (name, slots) in [("vale68:x", 128), ("pipe68{1", 128), ("vale68:pipe68_2", 1024)] {
        let opened = monitor(name, RingSelection::All, unasked).expect(name);
        assert_eq!((opened.rings.tx, opened.rings.rx, opened.rings.rx_slots), (1, 3, slots), "{name}");
        assert_eq!((is_there(&opened.layout.tx), is_there(&opened.layout.rx)), (vec![true], vec![true; 3]), "{name}");
        let opened = monitor(name, RingSelection::One(2), RingCounts { rx_slots: 32, ..unasked }).unwrap();
        assert_eq!((opened.rings.rx, opened.rings.rx_slots), (3, 32), "{name}");
        let rx = is_there(&opened.layout.rx);
        assert_eq!((is_there(&opened.layout.tx), rx), (vec![true], vec![false, false, true]), "{name}");
        assert_eq!(monitor(name, RingSelection::One(3), unasked).map(drop), Err(libc::EINVAL), "{name}");
        assert_eq!(monitor(name, RingSelection::Host, unasked).map(drop), Err(libc::EINVAL), "{name}");
        let folded = monitor(name, RingSelection::All, RingCounts { rx: 1, ..unasked }).unwrap();
        assert_eq!(folded.rings.rx, 1, "{name}");
    }
}

/// A zero-copy monitor fits for all lengths of rings that port and monitor request. It also fits if it was refused
/// before the port was open.
#[test]
fn a_zero_copy_monitor_fits_beside_a_port_of_any_length() {
    let server = server();
    let mut manager = session(&server, own(), None);
    let monitor = |name: &str, rings: RingCounts| {
        let both = OpenRequest { zero_copy: true, monitor_rx: true, monitor_tx: true, ..wanted(name) };
        open_request(OpenRequest { rings, ..both })
    };
    let lengths = |tx_slots, rx_slots| RingCounts { tx_slots, rx_slots, ..RingCounts::default() };
    let of_monitor = |client: &Client| client.opened().rings.rx_slots;
    for (n, slots) in [64, 128, 512, 1023, 1024, 2047, 2048, 2049, 4096].into_iter().enumerate() {
        for name in [format!("vale97:a{n}"), format!("last97_{n}"), format!("pipe97{{{n}")] {
            let is_persistent = name.starts_with("last");
            if is_persistent {
                let rings = lengths(slots, slots);
                ask(&mut manager, Request::Create { name: name.clone(), rings }).unwrap();
                ask(&mut manager, attach("vale97", &name)).unwrap();
            }
            let (mut port, mut first) = (session(&server, own(), None), session(&server, own(), None));
            let refused = ask(&mut first, monitor(&name, RingCounts::default()));
            assert_eq!(refused.unwrap_err(), libc::EINVAL, "{name}: {slots}: there is no port yet");
            let rings = if is_persistent { RingCounts::default() } else { lengths(slots, slots) };
            ask(&mut port, open_request(OpenRequest { rings, ..wanted(&name) })).unwrap();
            assert_eq!(port.opened().rings.rx_slots, slots, "{name}");
            for (asked, granted) in [(0, slots), (64, 64), (slots, slots), (4096, slots), (u32::MAX, slots)] {
                let opened = ask(&mut first, monitor(&name, lengths(asked, asked))).map(drop);
                assert_eq!(opened, Ok(()), "{name}: a monitor of {asked} slots beside {slots}");
                assert_eq!(of_monitor(&first), granted, "{name}: {asked} slots beside {slots}");
                first.close();
            }
        }
    }
    // Rings of different lengths: a monitor needs room for the longest.
    for (tx_slots, rx_slots) in [(64, 4096), (4096, 64)] {
        let mut port = session(&server, own(), None);
        let rings = lengths(tx_slots, rx_slots);
        ask(&mut port, open_request(OpenRequest { rings, ..wanted("vale97:b") })).unwrap();
        for (asked, granted) in [(0, rx_slots), (4096, 4096)] {
            let mut monitoring = session(&server, own(), None);
            ask(&mut monitoring, monitor("vale97:b", lengths(asked, asked))).unwrap();
            assert_eq!(of_monitor(&monitoring), granted, "{asked} slots beside {tx_slots} and {rx_slots}");
        }
    }
    // Memory without a port has no rings to monitor, regardless of its name.
    let mut memory = session(&server, own(), None);
    ask(&mut memory, open_request(OpenRequest { selection: RingSelection::Memory, ..wanted("vale97:c") })).unwrap();
    let mut monitoring = session(&server, own(), None);
    let refused = ask(&mut monitoring, monitor("vale97:c", lengths(4096, 4096))).map(drop);
    assert_eq!(refused, Err(libc::EINVAL));
}

#[test]
fn a_client_gets_the_selected_rings() {
    let server = server();
    let rings = RingCounts { tx: 2, rx: 2, tx_slots: 64, rx_slots: 64, ..RingCounts::default() };
    let sides = |layout: &crate::share::protocol::layout::PortLayout| {
        [&layout.tx, &layout.rx].map(|places| places.iter().map(Option::is_some).collect::<Vec<_>>())
    };
    let opened = |name: &str, wanted: OpenRequest| {
        let mut client = session(&server, own(), None);
        ask(&mut client, open_request(OpenRequest { name: name.to_string(), rings, ..wanted })).unwrap();
        let pump = client.running.as_ref().unwrap().pump.as_ref();
        let pump = pump.map(|pump| (pump.sending.len(), pump.receiving.len() + pump.delivered.len()));
        (sides(&client.opened().layout), pump)
    };
    let (yes, no) = (true, false);
    let any = OpenRequest::default;
    assert_eq!(opened("vale87:a", any()), ([vec![yes, yes], vec![yes, yes]], Some((2, 2))));
    let one = OpenRequest { selection: RingSelection::One(1), ..any() };
    assert_eq!(opened("vale87:a", one.clone()), ([vec![no, yes], vec![no, yes]], Some((1, 1))));
    let receives = OpenRequest { receive_only: true, ..any() };
    assert_eq!(opened("vale87:a", receives), ([vec![no, no], vec![yes, yes]], Some((0, 2))));
    let sends = OpenRequest { transmit_only: true, ..one };
    assert_eq!(opened("vale87:a", sends.clone()), ([vec![no, yes], vec![no, no]], Some((1, 0))));
    assert_eq!(
        opened("vale87:a", OpenRequest { selection: RingSelection::None, ..any() }),
        ([vec![no; 2], vec![no; 2]], Some((0, 0)))
    );
    assert_eq!(
        opened("no port", OpenRequest { selection: RingSelection::Memory, ..any() }),
        ([vec![no; 2], vec![no; 2]], None)
    );
    assert_eq!(opened("pipe87{1", any()), ([vec![yes, yes], vec![yes, yes]], None));
    assert_eq!(opened("pipe87{1", sends), ([vec![no, yes], vec![no, no]], None));
}

/// Each ring of a pipe's end may have its own descriptor. The two ends have mirrored numbers of rings.
#[test]
fn a_pipe_s_rings_are_opened_one_by_one() {
    let server = server();
    let rings = RingCounts { tx: 2, rx: 1, tx_slots: 64, rx_slots: 32, ..RingCounts::default() };
    let end = |name: &str, selection: RingSelection| {
        let mut client = session(&server, own(), None);
        let result = ask(&mut client, open_request(OpenRequest { selection, rings, ..wanted(name) })).map(drop);
        result.map(|()| client)
    };
    let first = end("pipe75{1", RingSelection::One(0)).unwrap();
    assert_eq!(end("pipe75{1", RingSelection::All).map(drop), Err(libc::EBUSY));
    let second = end("pipe75{1", RingSelection::One(1)).unwrap();
    assert_eq!(end("pipe75{1", RingSelection::One(2)).map(drop), Err(libc::EINVAL));
    let other = end("pipe75}1", RingSelection::All).unwrap();
    let mirrored = RingCounts { tx: 1, rx: 2, tx_slots: 32, rx_slots: 64, ..RingCounts::default() };
    let opened = other.opened();
    assert_eq!((opened.rings, info(&mut session(&server, own(), None), "pipe75}1")), (mirrored, Ok(mirrored)));
    let (one, two) = (first.opened(), second.opened());
    assert_eq!((opened.rings.tx_slots, one.number), (32, opened.number));
    assert_eq!(
        (one.layout.tx[0], two.layout.tx[1]),
        (opened.other.as_ref().unwrap().tx[0], opened.other.as_ref().unwrap().tx[1])
    );
    drop((first, second));
    assert!(!lock(&server.state.pipes).is_empty());
    drop(other);
    assert!(lock(&server.state.pipes).is_empty());
}

/// Slots that a client has released when it closes its end of a pipe are free for the sender.
#[test]
fn released_slots_are_freed_at_the_end() {
    use crate::share::protocol::ring::ClientRing;
    let server = server();
    let (mut sender, mut receiver) = (session(&server, own(), None), session(&server, own(), None));
    open(&mut sender, "pipe97{1").unwrap();
    open(&mut receiver, "pipe97}1").unwrap();
    let ring = receiver.running.as_ref().unwrap().session.receiving().next().unwrap().1;
    ring.publish_packets(5);
    let client = ClientRing::begin(ring.clone());
    client.set(3, 3);
    receiver.close();
    assert_eq!(ring.released(), 3);
}

#[test]
fn a_port_is_monitored_by_its_user_and_managers() {
    let server = server();
    let monitor = |user: u32, name: &str| {
        let wanted = OpenRequest { monitor_rx: true, monitor_tx: true, ..wanted(name) };
        ask(&mut session(&server, user, None), open_request(wanted)).map(drop)
    };
    let mut user = session(&server, STRANGER, None);
    open(&mut user, "vale96:a").unwrap();
    ask(&mut session(&server, own(), None), attach("vale96", "pipe96{1")).unwrap();
    for name in ["vale96:a", "vale96:pipe96_1", "vale96:none", "pipe96{2"] {
        assert_eq!(monitor(STRANGER + 1, name), Err(libc::EPERM), "{name}");
    }
    assert_eq!((monitor(STRANGER, "vale96:a"), monitor(own(), "vale96:a")), (Ok(()), Ok(())));
    assert_eq!(monitor(STRANGER, "vale96:pipe96_1"), Err(libc::EPERM), "a manager has attached it");
    let mut maker = session(&server, STRANGER, None);
    open(&mut maker, "pipe96{3").unwrap();
    assert_eq!((monitor(STRANGER, "pipe96{3"), monitor(STRANGER + 1, "pipe96{3")), (Ok(()), Err(libc::EPERM)));
    server.state.joins_users.store(true, Ordering::Relaxed);
    assert_eq!(monitor(STRANGER + 1, "vale96:a"), Ok(()));
    assert_eq!(monitor(STRANGER + 1, "vale96:pipe96_1"), Err(libc::EPERM));
}

/// Each receive ring uses a descriptor of the server.
#[test]
fn a_user_s_ports_of_many_rings_leave_others_theirs() {
    let server = server();
    let half = most_connections() / 2;
    let has = |number: u64, weight: usize| {
        let connection = Arc::new(Connection::pair().unwrap().into_iter().next().unwrap());
        let connected = Connected { connection, thread: std::thread::spawn(|| ()), user: STRANGER, weight };
        lock(&server.state.connections).insert(number, connected);
    };
    has(2, half - 2);
    let asked = |rx: u16| {
        let mut user = session(&server, STRANGER, None);
        has(user.handler.number, 1);
        let wanted = OpenRequest { rings: RingCounts { rx, ..RingCounts::default() }, ..wanted("vale94:a") };
        let result = ask(&mut user, open_request(wanted)).map(drop);
        let weight = lock(&server.state.connections)[&user.handler.number].weight;
        user.close();
        lock(&server.state.connections).remove(&user.handler.number);
        (result, weight)
    };
    assert_eq!(asked(7), (Ok(()), 1));
    assert_eq!(asked(8), (Ok(()), 2), "the host's is one, too");
    assert_eq!(asked(23), (Ok(()), 2));
    assert_eq!(asked(24), (Err(libc::EAGAIN), 1));
    lock(&server.state.connections).remove(&2);
    assert_eq!(asked(u16::MAX), (Ok(()), 3));
}

#[test]
fn options_are_not_a_part_of_a_name() {
    let server = server();
    let mut user = session(&server, own(), None);
    for name in ["vale95:a?queues=64&ring=4096", "pipe95{1?queues=64", "lo?flow=all"] {
        assert_eq!(open(&mut user, name).unwrap_err(), libc::ENXIO, "{name}");
        assert_eq!(info(&mut user, name).unwrap_err(), libc::ENXIO, "{name}");
        assert_eq!(header(&mut user, name, None).unwrap_err(), libc::ENXIO, "{name}");
    }
}

#[test]
fn a_request_for_information_opens_nothing() {
    let server = server();
    let mut user = session(&server, own(), None);
    let default = served::clamp_rings(&RingCounts::default());
    let at_switch = RingCounts { rx_slots: SWITCH_SLOTS, ..default };
    assert_eq!(info(&mut user, "vale88:a"), Ok(at_switch.of_card()));
    assert_eq!(info(&mut user, "pipe88{1"), Ok(default.of_card()));
    assert!(info(&mut user, "vale88:a?wire=none").is_err() && info(&mut user, "linerate_none").is_err());
    assert_eq!(info(&mut user, "lo"), Ok(default), "an interface of this machine has a host's stack");
    assert!(listed(&mut user).is_empty() && lock(&server.state.pipes).is_empty());
    // An open port keeps the rings that it was created with.
    let rings = RingCounts { tx: 2, rx: 3, tx_slots: 64, rx_slots: 128, ..RingCounts::default() };
    ask(&mut user, open_request(OpenRequest { rings, ..wanted("vale88:a") })).unwrap();
    assert_eq!(info(&mut user, "vale88:a"), Ok(rings));
    ask(&mut user, Request::Create { name: "last88".to_string(), rings }).unwrap();
    assert_eq!(info(&mut user, "last88"), Ok(rings));
}

#[test]
fn persistent_ports_have_names_of_interfaces() {
    let server = server();
    let mut manager = session(&server, own(), None);
    for name in ["", "lasting-89", "lasting 89", "a234567890123456", "vale89", "vale", "lasting.89", "äöü"] {
        assert_eq!(ask(&mut manager, create(name)).unwrap_err(), libc::EINVAL, "{name}");
    }
    assert_eq!(ask(&mut manager, create("lo")).unwrap_err(), libc::EEXIST, "it is an interface");
    for name in ["a", "lasting_89", "a23456789012345"] {
        assert!(ask(&mut manager, create(name)).is_ok(), "{name}");
        assert_eq!(ask(&mut manager, create(name)).unwrap_err(), libc::EEXIST, "it is there");
    }
}

#[test]
fn an_unused_port_is_detached_from_its_own_switch() {
    let server = server();
    let mut manager = session(&server, own(), None);
    let mut user = session(&server, STRANGER, None);
    ask(&mut manager, create("last90")).unwrap();
    let destroy = || Request::Destroy { name: "last90".to_string() };
    assert_eq!(listed(&mut manager), [("last90".to_string(), 0)]);
    assert_eq!(ask(&mut manager, detach("vale90", "last90")).unwrap_err(), libc::ENXIO);
    let mut other = session(&server, STRANGER, None);
    open(&mut other, "vale90:first").unwrap();
    assert!(matches!(ask(&mut manager, attach("vale90", "last90")), Ok(Reply::Done { number: 1 })));
    assert_eq!(ask(&mut manager, attach("vale90", "last90")).unwrap_err(), libc::EBUSY);
    assert_eq!(ask(&mut manager, destroy()).unwrap_err(), libc::EBUSY);
    let both = [("vale90:first".to_string(), 0), ("vale90:last90".to_string(), 1)];
    assert_eq!(listed(&mut manager), both);
    let mut only = session(&server, own(), Some("vale91"));
    assert!(listed(&mut only).is_empty(), "a socket lists its own name's");
    open(&mut user, "last90").unwrap();
    assert_eq!(ask(&mut manager, detach("vale90", "last90")).unwrap_err(), libc::EBUSY, "a client has it open");
    user.close();
    assert_eq!(ask(&mut manager, detach("vale91", "last90")).unwrap_err(), libc::ENXIO, "it is elsewhere");
    assert!(matches!(ask(&mut manager, detach("vale90", "last90")), Ok(Reply::Done { number: 1 })));
    assert!(ask(&mut manager, destroy()).is_ok());
    assert_eq!(ask(&mut manager, destroy()).unwrap_err(), libc::ENXIO);
}

#[test]
fn a_request_waits_for_a_client_that_is_about_to_end() {
    let server = server();
    let taken = || Error::port_in_use("vale93:a".to_string());
    let mut tries = 0;
    let left_third = || {
        tries += 1;
        if tries < 3 { Err(taken()) } else { Ok(tries) }
    };
    assert!(matches!(server.state.take_after_others(left_third), Ok(3)));
    assert!(server.state.take_after_others(|| Err::<(), _>(taken())).is_err(), "not for ever");
}

#[test]
fn ends_of_a_pipe_are_one_user_s_unless_the_server_joins_users() {
    for joins in [false, true] {
        let server = server();
        if joins {
            server.join_users();
        }
        let mut maker = session(&server, STRANGER, None);
        open(&mut maker, "pipe92{1").unwrap();
        let mut second = session(&server, STRANGER, None);
        assert_eq!(open(&mut second, "pipe92{1").unwrap_err(), libc::EBUSY, "this end is taken");
        let mut other = session(&server, STRANGER + 1, None);
        assert_eq!(open(&mut other, "pipe92}1").map(drop), if joins { Ok(()) } else { Err(libc::EPERM) });
        if joins {
            let (mine, theirs) = (maker.opened(), other.opened());
            let places = |layout: &crate::share::protocol::layout::PortLayout| (layout.tx.clone(), layout.rx.clone());
            assert_eq!(places(&mine.layout), places(theirs.other.as_ref().unwrap()));
            assert_eq!(places(&theirs.layout), places(mine.other.as_ref().unwrap()));
        }
        other.close();
        open(&mut second, "pipe92}1").unwrap();
        maker.close();
        assert_eq!(lock(&server.state.pipes).len(), 1, "the other end is open");
        open(&mut maker, "pipe92{1").unwrap();
        maker.close();
        second.close();
        assert!(lock(&server.state.pipes).is_empty());
        // Both ends must use the same packet offsets.
        let with = |mask: u64| Request::Open {
            wanted: wanted("pipe92{1"),
            memory: MemoryChoice { offsets: Offsets { mask, first: 0 }, ..MemoryChoice::default() },
        };
        ask(&mut maker, with(0xFF0)).unwrap();
        let other = |mask: u64| match with(mask) {
            Request::Open { memory, .. } => Request::Open { wanted: wanted("pipe92}1"), memory },
            request => request,
        };
        assert_eq!(ask(&mut second, other(0xF00)).unwrap_err(), libc::EINVAL);
        ask(&mut second, other(0xFF0)).unwrap();
    }
}

/// Only the port's user may create a pipe of the port. Another user could otherwise create the pipe first, and lock the
/// port's user out of both ends.
#[test]
fn a_pipe_of_a_port_is_its_user_s() {
    let server = server();
    let opens = |user: u32, name: &str| {
        let mut client = session(&server, user, None);
        open(&mut client, name).map(|_| client)
    };
    for (owner, port) in [(STRANGER, "vale66:a"), (own(), "vale66:b")] {
        let _port = opens(owner, port).ok().unwrap();
        for end in ['{', '}'] {
            assert_eq!(opens(STRANGER + 1, &format!("{port}{end}5")).map(drop), Err(libc::EPERM), "{port}{end}5");
        }
        assert!(opens(owner, &format!("{port}{{5")).is_ok() && opens(own(), &format!("{port}}}6")).is_ok(), "{port}");
    }
    ask(&mut session(&server, own(), None), attach("vale66", "pipe66{1")).unwrap();
    assert_eq!(opens(STRANGER, "vale66:pipe66_1{1").map(drop), Err(libc::EPERM), "a manager has attached it");
    assert!(opens(STRANGER, "vale66:none{1").is_ok(), "there is no such port");
    let _port = opens(own(), "vale66:c").ok().unwrap();
    server.join_users();
    assert!(opens(STRANGER, "vale66:c{1").is_ok());
}

#[test]
fn packets_begin_at_the_client_s_offsets() {
    let server = server();
    let rings = RingCounts { tx: 1, rx: 1, tx_slots: 64, rx_slots: 64, ..RingCounts::default() };
    let mut user = session(&server, own(), None);
    let offsets = Offsets { mask: 0xFF0, first: 0 };
    let memory = MemoryChoice { offsets, ..MemoryChoice::default() };
    ask(&mut user, Request::Open { wanted: OpenRequest { rings, ..wanted("vale93:a") }, memory }).unwrap();
    let pump = user.pump();
    let masks = (pump.sending[0].ring.ring.offset_mask, pump.delivered[0].ring.offset_mask);
    assert_eq!(masks, (0xFF0, 0xFF0));
}

/// The server is also idle if the last client leaves before the wait starts.
#[test]
fn a_server_is_idle_after_its_last_client_and_not_before_its_first() {
    let folder = tempfile::tempdir().unwrap();
    let hour = Duration::from_secs(3600);
    for leaves_before in [false, true] {
        let mut server = server();
        let path = folder.path().join(if leaves_before { "before" } else { "after" });
        server.listen(&path, None, 0o600, None).unwrap();
        let server = Arc::new(server);
        let (reports, ended) = std::sync::mpsc::channel();
        // Not joined, so that the test fails instead of hanging if the wait does not end.
        let begin_waiting = || {
            let server = server.clone();
            std::thread::spawn(move || {
                server.wait_until_idle(hour, Duration::ZERO);
                let _ = reports.send(());
            })
        };
        let come_and_go = || {
            let client = crate::share::protocol::socket::connect_to(&path).unwrap().unwrap();
            let begin = Instant::now();
            while lock(&server.state.connections).is_empty() {
                assert!(begin.elapsed() < Duration::from_secs(60), "the server does not see its client");
                std::thread::yield_now();
            }
            drop(client);
        };
        if leaves_before {
            come_and_go();
            begin_waiting();
        } else {
            begin_waiting();
            come_and_go();
        }
        ended.recv_timeout(Duration::from_secs(60)).expect("the server is idle after its last client");
    }
    // No client has connected yet.
    let server = server();
    let begin = Instant::now();
    server.wait_until_idle(Duration::from_millis(50), Duration::ZERO);
    assert!(begin.elapsed() >= Duration::from_millis(50));
}

#[test]
fn unused_ports_are_forgotten() {
    let server = server();
    let mut user = session(&server, own(), None);
    for name in ["vale94:a", "vale94:b", "vale94:c"] {
        open(&mut user, name).unwrap();
        assert_eq!(lock(&server.state.ports).len(), 1, "{name} is the only one");
        user.close();
    }
}
