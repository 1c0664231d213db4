//! Opaque serial depth: the longest chain of computation between two tokens of text ([`crate::latent::SerialDepth`]).

use super::Identity;

names! {
    /// Positions that a chain passes through.
    pub enum ChainOf {
        Text = "text",
        /// The longest block that the checkpoint's rule allows.
        Block = "block",
        /// All latents of one response: the decoded response with the most.
        Response = "response",
    }
}

rows! {
    /// The longest chain of computation between two tokens of text.
    pub struct SerialDepthRow {
        #[serde(flatten)]
        pub identity: Identity,
        pub chain: ChainOf => "name":
            "text: no latents; block: the longest block that the checkpoint's rule allows; response: all blocks of the decoded \
                response with the most latents",
        pub latents: usize => "count": "latents in series (tokens with mixed-in states count as latents)",
        pub layers: usize => "count": "transformer layers in series",
        pub operations: usize => "count":
            "operations in series, an upper bound: 1 for an elementwise operation, log2 n for a sum of n (arXiv:2603.09786)",
        pub positions: usize => "count": "positions that attention sums over",
    }
}

impl SerialDepthRow {
    /// One line in words.
    pub fn line(&self) -> String {
        let Self { chain, latents, layers, operations, .. } = self;
        let of = match chain {
            ChainOf::Text => "in text".to_owned(),
            ChainOf::Block => format!("through the longest block, {latents} latents"),
            ChainOf::Response => format!("through the response with the most latents, {latents}"),
        };
        format!("- opaque serial depth {of}: {layers} layers, {operations} operations.\n")
    }
}
