//! Limits per user of the server.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::share::protocol::lock;

/// The most buffers of a port outside its rings.
pub(super) const MAX_EXTRA_PER_PORT: u32 = 1 << 19;
/// The most buffers outside all rings for all ports of one user together, except for managers: 64 MiB in buffers of 2
/// KiB. They are linked into a list when a port is opened, which allocates the memory immediately.
pub(super) const MAX_EXTRA_PER_USER: u32 = 1 << 15;

/// Counts each user's buffers outside all rings.
#[derive(Default)]
pub(super) struct ExtraQuota(Arc<Mutex<HashMap<u32, u32>>>);

/// Buffers outside all rings that a port may use. They count against the user until this grant is dropped.
pub struct ExtraGrant {
    users: Arc<Mutex<HashMap<u32, u32>>>,
    user: u32,
    pub(super) count: u32,
}

impl ExtraQuota {
    /// Grants the requested buffers, or as many as the user's limit allows, as netmap does when it has fewer than
    /// requested.
    pub(super) fn grant(&self, user: u32, asked: u32, is_manager: bool) -> ExtraGrant {
        let mut users = lock(&self.0);
        let has = users.get(&user).copied().unwrap_or_default();
        let most = if is_manager { MAX_EXTRA_PER_PORT } else { MAX_EXTRA_PER_USER.saturating_sub(has) };
        let count = asked.min(most);
        if count > 0 {
            users.insert(user, has.saturating_add(count));
        }
        ExtraGrant { users: self.0.clone(), user, count }
    }
}

impl Drop for ExtraGrant {
    fn drop(&mut self) {
        let mut users = lock(&self.users);
        if let Some(has) = users.get_mut(&self.user) {
            *has = has.saturating_sub(self.count);
            if *has == 0 {
                users.remove(&self.user);
            }
        }
    }
}

/// Returns whether a user may have `more` connections or ports of a switch. `count` of at most `most` are in use,
/// `of_user` of them by this user. One user leaves room for others, and all users together leave room for managers.
pub(super) fn has_room(most: usize, more: usize, count: usize, of_user: usize, is_manager: bool) -> bool {
    let kept = if is_manager { 0 } else { (most / 8).max(1) };
    count + more <= most - kept && of_user + more <= (most / 2).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_shared_between_users_and_some_are_kept_for_managers() {
        assert!(has_room(16, 1, 7, 7, false) && !has_room(16, 1, 8, 8, false), "half for a user");
        assert!(has_room(16, 1, 13, 0, false) && !has_room(16, 1, 14, 0, false), "an eighth is for managers");
        assert!(has_room(16, 1, 15, 7, true) && !has_room(16, 1, 16, 0, true));
        assert!(has_room(2, 1, 0, 0, false) && !has_room(2, 1, 1, 0, false) && has_room(2, 1, 1, 0, true));
        assert!(has_room(16, 4, 4, 4, false) && !has_room(16, 5, 4, 4, false), "many rings count as several");
    }
}
