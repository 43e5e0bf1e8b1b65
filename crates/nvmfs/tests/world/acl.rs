//! Access control lists, for the model: by its own rules.

use lacuna_sim::SeededRng;

pub(crate) const ACL: &[u8] = b"system.posix_acl_access";
pub(crate) const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// Permissions of owner, group and others; of named users and groups, with a mask for them and the group.
#[derive(Clone, Debug)]
pub(crate) struct Acl {
    owner: u32,
    users: Vec<(u32, u32)>,
    group: u32,
    groups: Vec<(u32, u32)>,
    mask: Option<u32>,
    others: u32,
}

impl Acl {
    pub(crate) fn random(rng: &mut SeededRng) -> Acl {
        let mut any = || rng.below(8) as u32;
        let (owner, group, mask, others) = (any(), any(), any(), any());
        // Many names do not fit into an inode.
        let names = if rng.chance(20) { 60 } else { 3 };
        let mut named =
            || (0..rng.below(names)).map(|id| (id as u32, rng.below(8) as u32)).collect::<Vec<_>>();
        let (users, groups) = (named(), named());
        let has_names = !users.is_empty() || !groups.is_empty();
        Acl { owner, users, group, groups, mask: (has_names || rng.chance(10)).then_some(mask), others }
    }

    /// One that names this user.
    pub(crate) fn with_user(user: u32) -> Acl {
        Acl { owner: 6, users: vec![(user, 4)], group: 4, groups: Vec::new(), mask: Some(4), others: 0 }
    }

    /// The named users, and what they may do.
    pub(crate) fn users(&self) -> &[(u32, u32)] {
        &self.users
    }

    /// From the value of an attribute.
    pub(crate) fn of(value: &[u8]) -> Acl {
        let (mut users, mut groups, mut mask) = (Vec::new(), Vec::new(), None);
        let (mut owner, mut group, mut others) = (0, 0, 0);
        for entry in value[4..].chunks(8) {
            let id = u32::from_le_bytes(entry[4..].try_into().unwrap());
            let perm = entry[2].into();
            match entry[0] {
                1 => owner = perm,
                2 => users.push((id, perm)),
                4 => group = perm,
                8 => groups.push((id, perm)),
                16 => mask = Some(perm),
                _ => others = perm,
            }
        }
        Acl { owner, users, group, groups, mask, others }
    }

    pub(crate) fn value(&self) -> Vec<u8> {
        let mut value = vec![2, 0, 0, 0];
        let mut put = |tag: u8, perm: u32, id: u32| {
            value.extend([tag, 0, perm as u8, 0]);
            value.extend(id.to_le_bytes());
        };
        put(1, self.owner, u32::MAX);
        self.users.iter().for_each(|(id, perm)| put(2, *perm, *id));
        put(4, self.group, u32::MAX);
        self.groups.iter().for_each(|(id, perm)| put(8, *perm, *id));
        self.mask.iter().for_each(|perm| put(16, *perm, u32::MAX));
        put(32, self.others, u32::MAX);
        value
    }

    /// Whether it says more than a mode.
    pub(crate) fn has_names(&self) -> bool {
        self.mask.is_some()
    }

    pub(crate) fn perm(&self) -> u32 {
        self.owner << 6 | self.mask.unwrap_or(self.group) << 3 | self.others
    }

    pub(crate) fn chmod(&mut self, mode: u32) {
        (self.owner, self.others) = (mode >> 6 & 7, mode & 7);
        *self.mask.as_mut().unwrap_or(&mut self.group) = mode >> 3 & 7;
    }

    /// As the list of an object that is made with that mode.
    pub(crate) fn limit(&mut self, mode: u32) {
        self.chmod(mode & self.perm());
    }
}
