//! first look
use linerate::model::{Cable, Card, Function, Kind, Runner};
use linerate::pci::vfio_user::Server;
use linerate_guest::Machine;

#[test]
fn look() {
    let kind = match std::env::var("KIND").as_deref() {
        Ok("kx4") => Kind::X82599Kx4,
        Ok("x540") => Kind::X540,
        _ => Kind::X82599Sfp,
    };
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = Cable::pair();
    let runner = Runner::start(None).unwrap();
    let cards = [Card::of_kind(kind, 2, "a", Box::new(a)), Card::of_kind(kind, 0, "b", Box::new(b))];
    let mut machine = Machine::new().processors(2);
    if std::env::var("IOMMU").is_ok() {
        machine = machine.iommu_for_served();
    }
    machine.program("ethtool");
    machine.program("iperf3");
    let mut servers = Vec::new();
    for card in &cards {
        runner.run(card);
        let path = folder.path().join(card.name());
        servers.push(Server::start(&path, Box::new(Function::new(card.clone()))).unwrap());
        machine.served(&path);
    }
    if std::env::var("VFS").is_ok() {
        for n in 0..2 {
            let path = folder.path().join(format!("vf{n}"));
            servers.push(Server::start(&path, Box::new(Function::of_virtual(cards[0].clone(), n).unwrap())).unwrap());
            machine.served(&path);
        }
    }
    let mut guest = machine.boot();
    for command in std::env::var("COMMANDS").unwrap_or("modprobe ixgbe;dmesg | tail -30;ip link".into()).split(";;") {
        let outcome = guest.attempt(command);
        println!("# {command} -> {}\n{}", outcome.status, outcome.output);
    }
    for card in &cards {
        println!("{}: {} breaches", card.name(), card.breach_count());
        let mut all: Vec<String> = card.breaches().iter().map(|b| b.to_string()).collect();
        all.dedup();
        for breach in all.iter().take(40) {
            println!("   {breach}");
        }
    }
}
