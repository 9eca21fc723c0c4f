//! Rules, and the entries that they occupy in a card's tables of filters.

use linerate_core::error::{Error, ErrorKind, Result};
use linerate_core::filter::{Filter, Match};
use linerate_core::port::{Action, Rule, RuleId};

use super::{Controller, Entries, Hardware};
use crate::pci::Bar;

/// Why a card cannot have a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The card cannot express this part.
    Part(String),
    /// The table has no free entry.
    Full {
        /// The table's name.
        table: &'static str,
        /// The number of its entries.
        entries: usize,
    },
    /// Another rule is about the same packets.
    Same(RuleId),
}

impl Refused {
    /// Returns the error about a rule.
    pub fn error(self, port: &str, filter: &Filter, action: Action) -> Error {
        match self {
            Refused::Part(part) => Error::rule_part(port, filter, action, part),
            Refused::Full { table, entries } => Error::rules_full(port, table, entries),
            Refused::Same(rule) => {
                let why = format!("the rule '{filter} {action}' is about the same packets as rule {rule}");
                Error::new(ErrorKind::Exists, port, why)
            }
        }
    }
}

/// The tables of a card whose driver has no rules.
#[derive(Clone, Default)]
pub struct NoEntries;

impl<C: Controller> Entries<C> for NoEntries {
    const EXIST: bool = false;
    const MARKS: usize = 0;

    fn add(&mut self, _: RuleId, _: &Match, _: Action) -> std::result::Result<(), Refused> {
        Err(Refused::Part(format!("the driver {} has no rules", C::DRIVER)))
    }

    fn remove(&mut self, _: RuleId) {}

    fn with_queues(&self, _: impl Fn(u16) -> bool) -> NoEntries {
        NoEntries
    }

    fn write<B: Bar>(&self, _: &NoEntries, _: &Hardware<B, C>) -> Result<()> {
        Ok(())
    }
}

impl<B: Bar, C: Controller> Hardware<B, C> {
    /// Adds the entries of a rule to the card, all or none.
    pub(super) fn add_rule(&self, rule: &Rule) -> Result<()> {
        let Rule { id, filter, action } = rule;
        let queues = self.config.options.rx_queues;
        if let Action::Queue(queue) = *action
            && queue >= queues
        {
            return Err(Error::no_such_queue(self.config.name.clone(), "receive", queue, queues));
        }
        if matches!(action, Action::Mark(_)) && !self.config.options.metadata {
            return Err(Error::needs_metadata(&self.config.name, "marks are in the packets' metadata"));
        }
        self.check_alive()?;
        self.change_entries(|entries| {
            let added = filter.any().iter().try_for_each(|one| entries.add(*id, one, *action));
            added.map_err(|refused| refused.error(&self.config.name, filter, *action))
        })
    }

    /// Removes the entries of a rule from the card.
    pub(super) fn remove_rule(&self, id: RuleId) -> Result<()> {
        self.check_alive()?;
        self.change_entries(|entries| {
            entries.remove(id);
            Ok(())
        })
    }
}
