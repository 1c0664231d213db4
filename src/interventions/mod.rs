//! Interventions on latent states, one small documented value per file.
