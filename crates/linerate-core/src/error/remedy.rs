//! The remedy of an error. It is data, so that each program can display its own text.

use std::borrow::Cow;
use std::fmt;

/// A step that fixes the cause of an error. [`Display`](fmt::Display) names functions of the library,
/// [`command`](Remedy::command) names commands of `linerate`. A program may display its own text for each.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Remedy {
    /// A step, as a sentence.
    #[cfg_attr(feature = "serde", serde(rename = "Do"))]
    Step(Cow<'static, str>),
    /// A shell command, or a step that may help.
    #[cfg_attr(feature = "serde", serde(rename = "Try"))]
    Command(Cow<'static, str>),
    /// Choose another card.
    ChooseCard,
    /// Choose a queue that is not in use.
    ChooseQueue,
    /// Take the card away from the kernel.
    Take {
        /// The card's address.
        address: String,
    },
    /// Take the other cards of the IOMMU group away from the kernel.
    TakeOthers {
        /// The address of the first of these cards.
        first: String,
    },
    /// Take the card even though Linux is using it.
    TakeByForce {
        /// The card's address.
        address: String,
    },
    /// Take the card over vfio.
    TakeOverVfio {
        /// The card's address.
        address: String,
    },
    /// Change the system, or take the card over uio.
    TakeOverUio {
        /// The card's address.
        address: String,
        /// How to change the system.
        step: Cow<'static, str>,
    },
    /// Follow a step, or poll instead of using interrupts.
    Poll(Cow<'static, str>),
    /// Add Ethernet headers to the packets of a capture.
    AddHeaders,
    /// Serve a card.
    ServeCard {
        /// The path of the socket.
        path: String,
    },
    /// Let other users access the server's socket.
    Admit,
    /// Let programs of different users connect to each other at the server.
    JoinUsers,
    /// Build the library with a cargo feature.
    Build {
        /// The feature.
        feature: Cow<'static, str>,
    },
}

/// Converts a command, or a step that may help.
impl<T: Into<Cow<'static, str>>> From<T> for Remedy {
    fn from(step: T) -> Remedy {
        Remedy::Command(step.into())
    }
}

impl Remedy {
    /// Returns the step with commands of `linerate` instead of functions. The command itself adds their flags.
    pub fn command(&self) -> String {
        let step = match self {
            Remedy::Step(_) | Remedy::Command(_) | Remedy::ChooseQueue => return self.to_string(),
            Remedy::ChooseCard => "linerate ports, which lists the cards".to_string(),
            Remedy::Take { address } => format!("sudo linerate bind {address}"),
            Remedy::TakeOthers { first } => {
                format!("sudo linerate bind {first}, and the others, if you can do without them")
            }
            Remedy::TakeByForce { address } => format!("linerate bind {address}, with force, if you can do without it"),
            Remedy::TakeOverVfio { address } => {
                format!("sudo linerate bind {address}, to use it over vfio, without privileges")
            }
            Remedy::TakeOverUio { address, step } => format!("{step}, or take it over uio: linerate bind {address}"),
            Remedy::Poll(step) => format!("{step}, or poll"),
            Remedy::AddHeaders => {
                "pcap:FILE?ethernet=on, or replay with ethernet, which adds Ethernet headers".to_string()
            }
            Remedy::ServeCard { path } => format!("linerate sim, with {path} as its socket"),
            Remedy::Admit => "linerate serve, with another mode or group of its socket".to_string(),
            Remedy::JoinUsers => "linerate serve, and let programs of different users meet".to_string(),
            Remedy::Build { feature } => format!("a build of linerate with the cargo feature '{feature}'"),
        };
        format!("try: {step}")
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Remedy::Step(step) => f.write_str(step),
            Remedy::Command(step) => write!(f, "try: {step}"),
            Remedy::ChooseCard => f.write_str("pci::network_cards lists the cards"),
            Remedy::ChooseQueue => f.write_str("drop the first one, or ask for another queue"),
            Remedy::Take { address } => {
                write!(f, "take {address} from the kernel: pci::take as root, or Options::take for one run")
            }
            Remedy::TakeOthers { first } => {
                write!(f, "take {first} from the kernel, and the others, if you can do without them: pci::take")
            }
            Remedy::TakeByForce { address } => {
                write!(f, "take {address} with force, if you can do without it: TakeFromKernel::force")
            }
            Remedy::TakeOverVfio { address } => {
                write!(f, "take {address} over vfio, for which root is not needed: Access::Vfio")
            }
            Remedy::TakeOverUio { address, step } => write!(f, "{step}, or take {address} over uio: Access::Uio"),
            Remedy::Poll(step) => write!(f, "{step}, or poll: Options::interrupts"),
            Remedy::AddHeaders => f.write_str("add Ethernet headers: pcap:FILE?ethernet=on, or Frames::with_headers"),
            Remedy::ServeCard { path } => write!(f, "start a server at {path}: vfio_user::Server"),
            Remedy::Admit => f.write_str("give its socket another mode or group: Server::listen"),
            Remedy::JoinUsers => f.write_str("let programs of different users meet: Server::join_users"),
            Remedy::Build { feature } => write!(f, "build with it: cargo add linerate --features {feature}"),
        }
    }
}
