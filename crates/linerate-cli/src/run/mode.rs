//! The differences between the commands that move packets.

use linerate::port::PortClass;

/// The properties of a command's runs. The defaults describe a command that only receives.
pub trait Mode: Sync {
    /// Returns the command's name, for people and programs.
    fn name(&self) -> &'static str;

    /// Returns whether the threads send the packets that they receive. The ports then need the same number of queues.
    fn forwards(&self) -> bool {
        false
    }

    /// Returns whether the threads send frames that they generate. Such threads have no waiter.
    fn generates(&self) -> bool {
        false
    }

    /// Returns whether a packet counts as moved only when a port has sent it. The ports were given `given` packets.
    fn moves_by_sending(&self, given: u64) -> bool {
        self.generates() || given > 0 && (self.forwards() || self.is_measurement())
    }

    /// Returns whether the run is one of several measurements of its command, which prints the results itself.
    fn is_measurement(&self) -> bool {
        self.is_experiment()
    }

    /// Returns whether the run is for a report, which omits interrupted runs, and warns of busy processors itself.
    fn is_experiment(&self) -> bool {
        false
    }

    /// Returns whether the run begins only when a port of this category has a link.
    fn awaits_link_of(&self, _class: PortClass) -> bool {
        true
    }

    /// Returns why the run cannot pause.
    fn no_pause(&self) -> Option<&'static str> {
        None
    }
}
