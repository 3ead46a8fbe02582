//! The order of a migration, at its source. Pure.

/// Where a source stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    /// No migration.
    #[default]
    Idle,
    /// Pages go over while the guest runs.
    Brownout,
    /// The VM is paused, and its state is being saved: the last pages go over.
    Finishing,
    /// A target has everything: [`super::super::ownership`] says which side may run.
    Held,
}

/// A step that is not possible now (LM-29).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OutOfOrder {
    /// Prepare, while one is under way.
    #[error("a migration of this vGPU is under way already")]
    Twice,
    /// Save, before prepare.
    #[error("nothing was prepared, so there is nothing to complete")]
    NotPrepared,
    /// End, with nothing under way.
    #[error("no migration of this vGPU is under way")]
    None,
    /// Call off, when a target has everything.
    #[error("the target has everything: which side runs is decided by whose rings run next")]
    TooLate,
}

impl Phase {
    /// A migration begins.
    ///
    /// # Errors
    /// One is under way.
    pub fn prepare(&mut self) -> Result<(), OutOfOrder> {
        if *self != Self::Idle {
            return Err(OutOfOrder::Twice);
        }
        *self = Self::Brownout;
        Ok(())
    }

    /// The VM is paused; its state is being saved.
    ///
    /// # Errors
    /// Nothing was prepared, or it was saved already.
    pub fn finish(&mut self) -> Result<(), OutOfOrder> {
        match self {
            Self::Brownout => {
                *self = Self::Finishing;
                Ok(())
            }
            Self::Idle => Err(OutOfOrder::NotPrepared),
            Self::Finishing | Self::Held => Err(OutOfOrder::Twice),
        }
    }

    /// A target has everything.
    ///
    /// # Errors
    /// It was not being saved, or was called off meanwhile.
    pub fn hold(&mut self) -> Result<(), OutOfOrder> {
        if *self != Self::Finishing {
            return Err(OutOfOrder::NotPrepared);
        }
        *self = Self::Held;
        Ok(())
    }

    /// It is called off, or has failed (LM-65).
    ///
    /// # Errors
    /// There is none, or it is complete.
    pub fn abort(&mut self) -> Result<(), OutOfOrder> {
        match self {
            Self::Brownout | Self::Finishing => {
                *self = Self::Idle;
                Ok(())
            }
            Self::Idle => Err(OutOfOrder::None),
            Self::Held => Err(OutOfOrder::TooLate),
        }
    }

    /// It is over: the source runs again, or never will (LM-27, LM-28).
    ///
    /// # Errors
    /// It was not complete.
    pub fn end(&mut self) -> Result<(), OutOfOrder> {
        if *self != Self::Held {
            return Err(OutOfOrder::None);
        }
        *self = Self::Idle;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::OutOfOrder;
    use super::Phase;

    type Step = (&'static str, fn(&mut Phase) -> Result<(), OutOfOrder>);

    const STEPS: [Step; 5] = [
        ("prepare", Phase::prepare),
        ("finish", Phase::finish),
        ("hold", Phase::hold),
        ("abort", Phase::abort),
        ("end", Phase::end),
    ];

    /// Which steps are possible where, and where they lead.
    const EDGES: [(Phase, &str, Phase); 6] = [
        (Phase::Idle, "prepare", Phase::Brownout),
        (Phase::Brownout, "finish", Phase::Finishing),
        (Phase::Brownout, "abort", Phase::Idle),
        (Phase::Finishing, "hold", Phase::Held),
        (Phase::Finishing, "abort", Phase::Idle),
        (Phase::Held, "end", Phase::Idle),
    ];

    #[test]
    fn lm_11_lm_29_every_step_has_its_place_and_any_other_is_refused() {
        for from in [Phase::Idle, Phase::Brownout, Phase::Finishing, Phase::Held] {
            for (name, step) in STEPS {
                let mut phase = from;
                let edge = EDGES.iter().find(|edge| edge.0 == from && edge.1 == name);
                match (step(&mut phase), edge) {
                    (Ok(()), Some(edge)) => assert_eq!(phase, edge.2, "{name} in {from:?}"),
                    (Err(_), None) => assert_eq!(phase, from, "{name} in {from:?} changes nothing"),
                    (outcome, _) => panic!("{name} in {from:?}: {outcome:?}"),
                }
            }
        }
    }
}
