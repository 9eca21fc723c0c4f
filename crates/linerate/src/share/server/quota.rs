//! The part of the server that one user may have.

/// Returns whether a user may have `more` connections, or ports of a switch, beside `count` of at most `most`, of which
/// `of_user` are the user's. One user leaves room for others, and all users together leave room for managers.
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
