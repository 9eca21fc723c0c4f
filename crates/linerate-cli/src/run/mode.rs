//! What differs between the commands that move packets.

use linerate::Options;
use linerate::port::PortName;

/// A command that moves packets, with what its runs do differently from others. The defaults are those of a command that
/// receives.
pub trait Mode: Sync {
    /// Returns the command's name, for people and programs.
    fn name(&self) -> &'static str;

    /// Completes the options that the ports are opened with.
    fn complete(&self, options: Options, _names: &[PortName]) -> Options {
        options
    }

    /// Returns whether threads send what they receive: all ports have the same number of queues, and packets wait for a port.
    fn forwards(&self) -> bool {
        false
    }

    /// Returns whether threads make the frames that they send. They have no waiter.
    fn generates(&self) -> bool {
        false
    }

    /// Returns whether packets have moved when the ports have sent them, of which they were given `given`.
    fn moves_by_sending(&self, given: u64) -> bool {
        given > 0 || self.generates()
    }

    /// Returns whether the frames that are missing at the end are waited for: all of them are the run's own.
    fn awaits_frames(&self) -> bool {
        self.generates()
    }

    /// Returns whether the run ends when no port will receive anything any more.
    fn ends_with_ports(&self) -> bool {
        self.forwards()
    }

    /// Returns the number of threads for ports with these numbers of receive queues.
    fn threads(&self, queues: &[u16]) -> usize {
        queues.iter().min().map_or(1, |&queues| queues.into())
    }

    /// Returns whether the run is one of several measurements of its command, which shows their figures itself.
    fn is_measurement(&self) -> bool {
        false
    }

    /// Returns whether the command repeats runs for a report: it judges the processors, and leaves out runs that were interrupted.
    fn is_experiment(&self) -> bool {
        false
    }

    /// Returns whether a busy machine matters for a run that has lost this many packets.
    fn needs_processors(&self, _lost: u64) -> bool {
        true
    }

    /// Returns why the run cannot pause.
    fn no_pause(&self) -> Option<&'static str> {
        None
    }

    /// Returns why the run has no rate that can change.
    fn no_rate(&self) -> String {
        format!("{} has no rate of its own: gen has", self.name())
    }
}
