//! Rules for the packets that match a filter, which a card or the kernel applies.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;
use crate::filter::Filter;

/// The number of a rule. A port never gives a number twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleId(pub u32);

/// The treatment of the packets of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Action {
    /// They arrive in this receive queue of the port.
    Queue(u16),
    /// They are dropped.
    Drop,
    /// They go to the kernel, on ports that share an interface with it.
    Kernel,
    /// They are received as without the rule, and [`Metadata::mark`](crate::metadata::Metadata::mark) is this number.
    Mark(u32),
}

/// A rule of a port; see [`Port::add_rule`](super::Port::add_rule).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The rule's number.
    pub id: RuleId,
    /// The packets that the rule is about.
    pub filter: Filter,
    /// Their treatment.
    pub action: Action,
}

/// The rules of a port, in the order in which they were added.
#[derive(Debug, Default)]
pub struct Rules {
    list: Vec<Rule>,
    next: u32,
}

impl Rules {
    /// Returns a new rule with an unused number, without adding it.
    pub fn numbered(&mut self, filter: &Filter, action: Action) -> Rule {
        let id = RuleId(self.next);
        self.next += 1;
        Rule { id, filter: filter.clone(), action }
    }

    /// Adds a rule after the others.
    pub fn push(&mut self, rule: Rule) {
        self.list.push(rule);
    }

    /// Removes a rule.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound): the port has no rule with this number.
    pub fn remove(&mut self, port: &str, id: RuleId) -> Result<Rule, Error> {
        let at = self.list.iter().position(|rule| rule.id == id).ok_or_else(|| Error::no_such_rule(port, id))?;
        Ok(self.list.remove(at))
    }

    /// Returns the rules.
    pub fn list(&self) -> &[Rule] {
        &self.list
    }
}

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Action {
    /// Writes `queue:3`, `drop`, `kernel` or `mark:7`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Queue(queue) => write!(f, "queue:{queue}"),
            Action::Drop => f.write_str("drop"),
            Action::Kernel => f.write_str("kernel"),
            Action::Mark(mark) => write!(f, "mark:{mark}"),
        }
    }
}

impl FromStr for Action {
    type Err = Error;

    /// Parses an action as it is displayed.
    fn from_str(text: &str) -> Result<Action, Error> {
        let wrong = || Error::bad_value(format!("'{text}' is not an action: write queue:3, drop, kernel or mark:7"));
        match text.split_once(':') {
            Some(("queue", queue)) => queue.parse().map(Action::Queue).map_err(|_| wrong()),
            Some(("mark", mark)) => mark.parse().map(Action::Mark).map_err(|_| wrong()),
            None if text == "drop" => Ok(Action::Drop),
            None if text == "kernel" => Ok(Action::Kernel),
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_action_is_read_as_it_is_written() {
        for action in [Action::Queue(0), Action::Queue(65_535), Action::Drop, Action::Kernel, Action::Mark(u32::MAX)] {
            assert_eq!(action.to_string().parse().ok(), Some(action));
        }
        for text in ["", "queue", "queue:", "queue:65536", "queue:-1", "Drop", "mark", "drop:", "mark:4294967296"] {
            assert!(text.parse::<Action>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_number_is_not_given_twice() {
        let (mut rules, filter) = (Rules::default(), "arp".parse().unwrap());
        let first = rules.numbered(&filter, Action::Drop);
        rules.push(first.clone());
        assert_eq!(rules.remove("port", first.id).unwrap(), first);
        assert_ne!(rules.numbered(&filter, Action::Drop).id, first.id);
        assert_eq!(rules.remove("port", first.id).unwrap_err().kind(), crate::ErrorKind::NotFound);
    }
}
