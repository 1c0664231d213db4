//! Other libraries' names of our points: those of TransformerLens 4's bridge (`blocks.2.hook_out`, `blocks.2.attn.o.hook_in`) and
//! interp-engine's addresses (`resid_post.2`). Accepted wherever a hook is named; output uses our names.

use crate::model::config::NormPlace;

/// Within a block: the bridge's, and ours.
const BRIDGE: [(&str, &str); 14] = [
    ("hook_in", "hook_resid_pre"),
    ("ln1.hook_in", "hook_resid_pre"),
    ("attn.q.hook_out", "attn.hook_q"),
    ("attn.k.hook_out", "attn.hook_k"),
    ("attn.v.hook_out", "attn.hook_v"),
    ("attn.o.hook_in", "attn.hook_z"),
    ("attn.hook_out", "hook_attn_out"),
    ("ln2.hook_in", "hook_resid_mid"),
    ("mlp.gate.hook_out", "mlp.hook_pre"),
    ("mlp.in.hook_out", "mlp.hook_pre_linear"),
    ("mlp.out.hook_in", "mlp.hook_post"),
    ("mlp.out.hook_out", "hook_mlp_out"),
    ("mlp.hook_out", "hook_mlp_out"),
    ("hook_out", "hook_resid_post"),
];

const OUTSIDE: [(&str, &str); 4] = [
    ("embed.hook_out", "hook_embed"),
    ("pos_embed.hook_out", "hook_pos_embed"),
    ("ln_final.hook_in", "blocks.-1.hook_resid_post"),
    ("embeddings", "hook_embed"),
];

/// interp-engine's, which a layer follows.
const ENGINE: [(&str, &str); 16] = [
    ("resid_pre", "hook_resid_pre"),
    ("q_norm_in", "attn.hook_q"),
    ("k_norm_in", "attn.hook_k"),
    ("value", "attn.hook_v"),
    ("attn_scores", "attn.hook_attn_scores"),
    ("attn_probs", "attn.hook_pattern"),
    ("z", "attn.hook_z"),
    ("attn_out", "hook_attn_out"),
    ("attn_out_post", "hook_attn_out"),
    ("resid_mid", "hook_resid_mid"),
    ("mlp_pre", "mlp.hook_pre"),
    ("mlp_pre_linear", "mlp.hook_pre_linear"),
    ("mlp_act", "mlp.hook_post"),
    ("mlp_out", "hook_mlp_out"),
    ("mlp_out_post", "hook_mlp_out"),
    ("resid_post", "hook_resid_post"),
];

/// Our pattern for another library's; `None` if it is not one of theirs.
pub(super) fn ours(pattern: &str) -> Option<String> {
    if let Some((_, ours)) = OUTSIDE.iter().find(|(theirs, _)| *theirs == pattern) {
        return Some((*ours).to_owned());
    }
    if let Some((layer, part)) = pattern.strip_prefix("blocks.").and_then(|rest| rest.split_once('.')) {
        let (_, ours) = BRIDGE.iter().find(|(theirs, _)| *theirs == part)?;
        return Some(format!("blocks.{layer}.{ours}"));
    }
    let (name, layer) = pattern.split_once('.')?;
    let is_layer = layer == "*" || layer.parse::<i64>().is_ok();
    let (_, ours) = ENGINE.iter().find(|(theirs, _)| is_layer && *theirs == name)?;
    Some(format!("blocks.{layer}.{ours}"))
}

/// Whether another library's name means something else in a model with these norms: the output of a half before its second norm (ours
/// is what is added to the stream), or that norm's input.
pub(super) fn is_elsewhere(pattern: &str, norms: NormPlace) -> bool {
    let part = match pattern.strip_prefix("blocks.").and_then(|rest| rest.split_once('.')) {
        Some((_, part)) => part,
        None => pattern.split_once('.').map_or("", |(name, _)| name),
    };
    let put_out = ["attn.hook_out", "mlp.hook_out", "mlp.out.hook_out", "attn_out", "mlp_out"].contains(&part);
    let read = ["ln1.hook_in", "ln2.hook_in"].contains(&part);
    put_out && norms != NormPlace::Before || read && norms == NormPlace::After
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::HookPoint;

    #[test]
    fn what_a_norm_behind_a_part_reads_has_no_point_of_ours() {
        let at =
            |pattern: &str| [NormPlace::Before, NormPlace::After, NormPlace::Both].map(|p| is_elsewhere(pattern, p));
        for pattern in ["blocks.*.attn.hook_out", "blocks.0.mlp.out.hook_out", "mlp_out.2"] {
            assert_eq!(at(pattern), [false, true, true], "{pattern}");
        }
        assert_eq!(at("blocks.1.ln2.hook_in"), [false, true, false]);
        for pattern in ["blocks.0.hook_attn_out", "blocks.0.hook_out", "attn_out_post.1", "ln_final.hook_in"] {
            assert_eq!(at(pattern), [false; 3], "{pattern}");
        }
    }

    #[test]
    fn other_names_are_our_points() {
        let same = |theirs: &str, ours: &str| {
            let all = |pattern| HookPoint::resolve(pattern, 3).expect(pattern);
            assert_eq!(all(theirs), all(ours), "{theirs}");
        };
        for (theirs, ours) in BRIDGE {
            same(&format!("blocks.*.{theirs}"), &format!("blocks.*.{ours}"));
            same(&format!("blocks.-2.{theirs}"), &format!("blocks.1.{ours}"));
        }
        for (theirs, ours) in ENGINE {
            same(&format!("{theirs}.2"), &format!("blocks.2.{ours}"));
            same(&format!("{theirs}.*"), &format!("blocks.*.{ours}"));
        }
        OUTSIDE.iter().for_each(|(theirs, ours)| same(theirs, ours));
        for unknown in ["blocks.0.hook_outer", "resid_post", "resid_post.x", "blocks.7.hook_out", "attn_gate.0"] {
            let error = HookPoint::resolve(unknown, 3).expect_err(unknown).to_string();
            assert!(error.contains("unknown hook") && error.contains(unknown), "{error}");
        }
    }
}
