//! The thread of a link, which moves frames between the port and its members.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use linerate::Batch;
use linerate_preload::report;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::link::{Link, Queues, ROOM};
use super::member::{Member, Taken};

/// Maximum number of frames per receive call, and taken from one member per round.
const BATCH: usize = 64;
/// Minimum size of a pool's buffers.
const SMALLEST_SLOT: usize = 1024;
/// How long the thread polls before it sleeps.
const POLL_TIME: Duration = Duration::from_micros(50);
/// The longest sleep, and the interval between checks of the port's link.
const LONGEST_SLEEP: Duration = Duration::from_millis(250);
/// The longest sleep while frames wait for room, or where the port cannot wake a thread.
const TICK: Duration = Duration::from_millis(1);

struct Mover<'a> {
    link: &'a Link,
    queues: Queues,
    members: Vec<Arc<Member>>,
    /// Members whose socket is closed.
    ended: Vec<Arc<Member>>,
    received: Batch,
    /// Frames that wait for room at the port, and since when.
    to_send: Batch,
    waits_since: Option<Instant>,
    /// Frames that the port has accepted, and frames dropped because it had no room.
    sent: u64,
    lost: u64,
    /// Buffers for a member's frame, and for a received frame that spans several buffers.
    frame: Vec<u8>,
    whole: Vec<u8>,
    is_promiscuous: Option<bool>,
    /// The time of the last link check.
    link_since: Instant,
}

/// Moves frames until the link has no members.
pub fn run(link: &Link, queues: Queues) {
    let sent = queues.sent;
    let mut mover = Mover {
        link,
        frame: vec![0; link.properties.max_frame.max(64)],
        queues,
        members: Vec::new(),
        ended: Vec::new(),
        received: Batch::with_capacity(BATCH),
        to_send: Batch::with_capacity(BATCH + link.properties.max_frame / SMALLEST_SLOT + 1),
        waits_since: None,
        sent,
        lost: 0,
        whole: Vec::new(),
        is_promiscuous: None,
        link_since: Instant::now(),
    };
    let (mut flushes_done, mut requested_since, mut quiet_since) = (0, None::<Instant>, None::<Instant>);
    while let Some(requested) = mover.update_members() {
        let (taken, is_drained) = mover.send();
        let received = mover.receive();
        if !mover.ended.is_empty() || mover.members.is_empty() {
            // The frames of a closed socket must reach the wire before it is removed.
            let begin = Instant::now();
            while !mover.is_settled() && begin.elapsed() < ROOM {
                mover.send();
                mover.receive();
                std::thread::yield_now();
            }
            if link.remove(&std::mem::take(&mut mover.ended)) {
                break;
            }
        }
        if requested > flushes_done {
            let since = *requested_since.get_or_insert_with(Instant::now);
            if is_drained && mover.is_settled() || since.elapsed() > ROOM {
                flushes_done = requested;
                requested_since = None;
                link.finish(flushes_done, mover.dropped());
            } else {
                std::thread::yield_now();
            }
            continue;
        }
        if taken + received > 0 {
            quiet_since = None;
        } else if quiet_since.get_or_insert_with(Instant::now).elapsed() > POLL_TIME && !mover.sleep() {
            break;
        }
    }
    if mover.lost > 0 {
        report(&format!("{}: {} frames were not sent: the port had no room", link.name.text, mover.lost));
    }
}

impl Mover<'_> {
    /// Updates the members and their settings; returns the number of flush requests, or `None` if the process is
    /// exiting.
    fn update_members(&mut self) -> Option<u64> {
        let state = self.link.state();
        if state.is_ending {
            return None;
        }
        if self.members.len() != state.members.len()
            || self.members.iter().zip(&state.members).any(|(ours, theirs)| !Arc::ptr_eq(ours, theirs))
        {
            self.members.clone_from(&state.members);
        }
        let requested = state.flushes_requested;
        drop(state);
        let wanted = self.members.iter().any(|member| member.settings.is_promiscuous.load(Relaxed));
        if self.is_promiscuous != Some(wanted) {
            // Ports in memory do not filter by address, so an error is ignored.
            let _ = self.queues.port.set_promiscuous(wanted);
            self.is_promiscuous = Some(wanted);
        }
        Some(requested)
    }

    /// Takes frames from the members and sends them. Returns how many were taken, and whether no member has more.
    fn send(&mut self) -> (usize, bool) {
        let (mut taken, mut is_drained) = (0, true);
        if self.to_send.is_empty() {
            for member in &self.members {
                let mut has_more = true;
                for _ in 0..BATCH {
                    match member.take(&mut self.frame) {
                        Taken::Frame(len) => {
                            taken += 1;
                            // The replaced calls reject frames that are too long, but another program may share the
                            // socket.
                            let frame = self.frame.get(..len);
                            if !frame.is_some_and(|frame| self.to_send.push(self.queues.port.pool(), frame)) {
                                self.lost += 1;
                            }
                        }
                        Taken::NoFrame => has_more = false,
                        Taken::End => {
                            has_more = false;
                            if !self.ended.iter().any(|ended| Arc::ptr_eq(ended, member)) {
                                self.ended.push(member.clone());
                            }
                        }
                    }
                    if !has_more || self.to_send.len() >= BATCH {
                        break;
                    }
                }
                is_drained &= !has_more;
            }
        } else {
            is_drained = false;
        }
        let Some(tx) = &mut self.queues.tx else {
            self.lost += self.to_send.len() as u64;
            self.to_send.clear();
            return (taken, is_drained);
        };
        if self.to_send.is_empty() && tx.unsent() == 0 {
            return (taken, is_drained);
        }
        let before = self.to_send.packets().count();
        tx.send(&mut self.to_send);
        let accepted = before - self.to_send.packets().count();
        self.sent += accepted as u64;
        if accepted > 0 || self.to_send.is_empty() {
            self.waits_since = None;
        } else if self.waits_since.get_or_insert_with(Instant::now).elapsed() > ROOM {
            self.lost += before as u64;
            self.to_send.clear();
            self.waits_since = None;
        }
        (taken, is_drained)
    }

    /// Receives frames and passes them to the members. Returns their number.
    fn receive(&mut self) -> usize {
        self.received.clear();
        let Some(rx) = &mut self.queues.rx else { return 0 };
        if rx.recv(&mut self.received) == 0 {
            return 0;
        }
        let filters: Vec<_> = self.members.iter().map(|member| member.settings.filter()).collect();
        let mut count = 0;
        for packet in self.received.packets() {
            count += 1;
            let frame = if packet.slots() == 1 {
                &packet[..]
            } else {
                self.whole.clear();
                packet.append_to(&mut self.whole);
                &self.whole[..]
            };
            for (member, filter) in self.members.iter().zip(&filters) {
                member.deliver(frame, filter.as_deref());
            }
        }
        count
    }

    /// Returns whether all taken frames are on the wire: closing a card discards the frames in its ring.
    fn is_settled(&self) -> bool {
        let is_handed_on = self.to_send.is_empty() && self.queues.tx.as_ref().is_none_or(|tx| tx.unsent() == 0);
        is_handed_on
            && (self.sent == 0
                || self.queues.port.statistics().is_ok_and(|statistics| statistics.tx_packets >= self.sent))
    }

    /// Returns how many frames the port has dropped because this thread was too slow.
    fn dropped(&self) -> u64 {
        self.queues.port.statistics().map(|statistics| statistics.drops.no_descriptor).unwrap_or_default()
    }

    /// Sleeps until there is something to do. Returns false if the port is gone.
    fn sleep(&mut self) -> bool {
        let is_full = !self.to_send.is_empty() || self.queues.tx.as_ref().is_some_and(|tx| tx.unsent() > 0);
        self.queues.rx.iter_mut().for_each(|rx| {
            rx.arm();
        });
        // A frame may have arrived before the queue was armed.
        if self.receive() > 0 {
            self.queues.rx.iter_mut().for_each(|rx| rx.disarm());
            return true;
        }
        let is_silent = self.queues.rx.is_none() || self.queues.port.is_exhausted();
        let event = self.queues.rx.as_mut().and_then(|rx| rx.arm());
        let can_wake = event.is_some() || is_silent;
        let longest = if is_full || !can_wake { TICK } else { LONGEST_SLEEP };
        let mut events = vec![PollFd::new(&self.link.wake, PollFlags::IN)];
        events.extend(event.as_ref().map(|event| PollFd::new(event, PollFlags::IN)));
        if !is_full {
            events.extend(
                self.members.iter().map(|member| PollFd::from_borrowed_fd(member.end().as_fd(), PollFlags::IN)),
            );
        }
        let longest = Timespec { tv_sec: 0, tv_nsec: longest.as_nanos() as i64 };
        let _ = poll(&mut events, Some(&longest));
        let is_asked = events[0].revents().contains(PollFlags::IN);
        drop(events);
        if is_asked {
            let _ = rustix::io::read(&self.link.wake, &mut [0; 8]);
        }
        self.queues.rx.iter_mut().for_each(|rx| rx.disarm());
        // Check the link regularly: the event of a port that is gone stays readable.
        if self.link_since.elapsed() < LONGEST_SLEEP {
            return true;
        }
        self.link_since = Instant::now();
        match self.queues.port.link() {
            // Frames that arrived before the error are received first.
            Err(_) if self.receive() > 0 => true,
            Err(error) => {
                let (name, text) = (&self.link.name.text, error.with_command_hint());
                // Most errors already name their port.
                report(&if text.contains(name.as_str()) { text } else { format!("{name}: {text}") });
                false
            }
            Ok(_) => true,
        }
    }
}
