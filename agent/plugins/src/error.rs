//! A failed call to a plugin: which call, the code, the words, and which side made them.
//!
//! Input: a gRPC status, or what went wrong on the way. Output: `CallError`, and the one question
//! that matters for a volume: can the operation still be under way? Display is what the kubelet
//! shows, so that events read alike. Bound: `MESSAGE_BYTES_MAX` of the plugin's words.

pub use pintle_cri::{Code, code_name};

/// How many bytes of a plugin's words are kept.
pub const MESSAGE_BYTES_MAX: usize = 4 * 1024;

/// Which side an error was made on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorSide {
    /// The plugin answered with it.
    Plugin,
    /// The plugin was not reached, did not answer in time, or its answer was none.
    Agent,
}

/// A failed call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rpc error: code = {} desc = {message}", code_name(*code))]
pub struct CallError {
    /// Name of the call.
    pub method: &'static str,
    /// gRPC's code.
    pub code: Code,
    /// The plugin's words, or ours.
    pub message: String,
    /// Which side it was made on.
    pub origin: ErrorSide,
}

impl CallError {
    /// What a plugin answered.
    pub(crate) fn answered(method: &'static str, status: &tonic::Status) -> Self {
        let message = cut(status.message()).to_owned();
        Self { method, code: status.code(), message, origin: ErrorSide::Plugin }
    }

    /// What went wrong on the way.
    pub(crate) fn agent(method: &'static str, code: Code, message: impl Into<String>) -> Self {
        Self { method, code, message: message.into(), origin: ErrorSide::Agent }
    }

    /// Returns whether the operation has certainly ended. After any other error it may still be
    /// under way or have taken effect: the volume is uncertain.
    ///
    /// An answer that could not be read is not final, whatever its code: the plugin has acted.
    // k8s: pkg/volume/csi/csi_client.go isFinalError
    pub fn is_final(&self) -> bool {
        let may_go_on = matches!(
            self.code,
            Code::Cancelled
                | Code::DeadlineExceeded
                | Code::Unavailable
                | Code::ResourceExhausted
                | Code::Aborted
        );
        self.origin == ErrorSide::Plugin && !may_go_on
    }
}

/// The first bytes of a text, up to a whole character.
pub(crate) fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MESSAGE_BYTES_MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finality_of_a_plugins_codes_is_the_kubelets() {
        let open = [
            Code::Cancelled,
            Code::DeadlineExceeded,
            Code::Unavailable,
            Code::ResourceExhausted,
            Code::Aborted,
        ];
        for number in 1..=16 {
            let code = Code::from(number);
            let error = CallError::answered("X", &tonic::Status::new(code, ""));
            assert_eq!(error.is_final(), !open.contains(&code), "{code:?}");
            assert!(!CallError::agent("X", code, "").is_final(), "{code:?} of this side");
        }
    }

    #[test]
    fn an_error_reads_as_the_kubelets() {
        let error = CallError::agent("NodeStageVolume", Code::Cancelled, "gone");
        assert_eq!(error.to_string(), "rpc error: code = Canceled desc = gone");
    }

    #[test]
    fn long_words_are_cut_at_a_character() {
        let long = format!("{}ü", "x".repeat(MESSAGE_BYTES_MAX - 1));
        let error = CallError::answered("X", &tonic::Status::internal(long));
        assert_eq!(error.message.len(), MESSAGE_BYTES_MAX - 1);
    }
}
