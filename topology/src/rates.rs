//! Link rates by kind and generation.
