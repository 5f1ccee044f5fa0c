//! What every controller is made of, without effects.

#![forbid(unsafe_code)]
