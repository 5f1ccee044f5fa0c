//! The other end of a connection, for shares: an IPv4 address, an IPv6 network, a user.
//!
//! Pure. One IPv6 host usually has a whole /64 to itself, so addresses of one count as one peer.

use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::sync::OnceLock;

/// The unit that shares are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PeerKey {
    /// An address of IPv4.
    V4([u8; 4]),
    /// The first 64 bits.
    V6([u8; 8]),
    /// A user of this node, on a local socket.
    Local(u32),
    /// A client that has proved a name, from any address: a digest of the name.
    Named(u64),
}

impl PeerKey {
    /// The peer that has proved this name.
    pub fn named(name: &str) -> Self {
        // The same for as long as the process lives; a client cannot construct a collision.
        static KEYS: OnceLock<RandomState> = OnceLock::new();
        Self::Named(KEYS.get_or_init(RandomState::new).hash_one(name))
    }

    /// The peer of an address.
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address.octets()),
            IpAddr::V6(address) => {
                let mut network = [0; 8];
                network.copy_from_slice(&address.octets()[..8]);
                Self::V6(network)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_network_are_one_peer() {
        let key = |text: &str| PeerKey::of(text.parse().expect("an address"));
        for (one, other, same) in [
            ("192.0.2.1", "192.0.2.1", true),
            ("192.0.2.1", "192.0.2.2", false),
            ("192.0.2.1", "::ffff:192.0.2.1", true),
            ("2001:db8::1", "2001:db8::ffff:2", true),
            ("2001:db8::1", "2001:db8:0:1::1", false),
        ] {
            assert_eq!(key(one) == key(other), same, "{one} {other}");
        }
    }
}
