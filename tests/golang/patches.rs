//! Strategic merge patches: made from two objects, and applied.
