//! The tensor functions a decoder is made of, each a plain composition.
