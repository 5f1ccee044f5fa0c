//! Closed sets of words that a configuration field may hold, one enum each.
//!
//! An unknown word is refused while the file or flag is read, with the list of the allowed ones, so
//! that no later stage has to handle it. An enum's `Default` is the first word.

/// Declares an enum of words of the configuration API.
#[macro_export]
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $(#[$first_doc:meta])* $first:ident = $first_word:literal
        $(, $(#[$variant_doc:meta])* $variant:ident = $word:literal)* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash,
            serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $(#[$first_doc])* #[default] #[serde(rename = $first_word)] $first,
            $($(#[$variant_doc])* #[serde(rename = $word)] $variant,)*
        }

        impl $name {
            /// The word of the configuration API.
            pub const fn as_str(self) -> &'static str {
                match self {
                    Self::$first => $first_word,
                    $(Self::$variant => $word,)*
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}
