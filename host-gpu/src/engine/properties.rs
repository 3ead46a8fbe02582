//! Scheduling properties as the shared block has them, for policies.

use std::time::Duration;

use campanile_protocol::engine::scheduling::Bands;
use campanile_protocol::engine::scheduling::ContextProperties;
use campanile_protocol::engine::scheduling::Urgency;

use crate::sched::parameters::Band;
use crate::sched::parameters::BandSettings;
use crate::sched::parameters::DEFAULT_WEIGHT;
use crate::sched::parameters::MAX_LEVEL;
use crate::sched::parameters::Parameters;
use crate::sched::parameters::Settings;

/// The unit of times in properties (PRE-66, PRE-67).
const UNIT: u64 = 100;

/// Of a context of which the daemon has said nothing: like any other.
pub const UNKNOWN: ContextProperties = ContextProperties {
    generation: 0,
    group: 0,
    band: Band::Normal as u8,
    level: 0,
    priority: 0,
    reserved: 0,
    weight: DEFAULT_WEIGHT,
    quantum: 20_000,
    grace_same: 5_000,
    grace_lower: 1_000,
    reserved_too: 0,
};

/// A time of `count` units of 100 ns.
pub fn time(count: u32) -> Duration {
    Duration::from_nanos(u64::from(count) * UNIT)
}

/// `time` in units of 100 ns.
pub fn units(time: Duration) -> u32 {
    u32::try_from(time.as_nanos() / u128::from(UNIT)).unwrap_or(u32::MAX)
}

/// For a policy.
pub fn parameters(properties: &ContextProperties) -> Parameters {
    Parameters {
        group: u64::from(properties.group),
        band: Band::from_number(u32::from(properties.band)).unwrap_or(Band::Normal),
        level: properties.level,
        priority: properties.priority,
        weight: properties.weight,
        quantum: time(properties.quantum),
        grace_same: time(properties.grace_same),
        grace_lower: time(properties.grace_lower),
        ..Parameters::default()
    }
}

/// For the shared block.
pub fn properties(parameters: &Parameters, generation: u32) -> ContextProperties {
    ContextProperties {
        generation,
        group: u32::try_from(parameters.group).unwrap_or(u32::MAX),
        band: parameters.band as u8,
        level: parameters.level,
        priority: parameters.priority,
        reserved: 0,
        weight: parameters.weight,
        quantum: units(parameters.quantum),
        grace_same: units(parameters.grace_same),
        grace_lower: units(parameters.grace_lower),
        reserved_too: 0,
    }
}

/// How urgent a context's work is.
pub fn urgency(properties: &ContextProperties) -> Urgency {
    let band = Band::from_number(u32::from(properties.band)).unwrap_or(Band::Normal);
    let level = if band == Band::Realtime { properties.level.min(MAX_LEVEL) } else { 0 };
    Urgency { band: band as u8, level }
}

/// For a policy.
pub fn settings(bands: &Bands) -> Settings {
    Settings {
        bands: bands.bands.map(|band| BandSettings {
            grace: time(band.grace),
            process_quantum: time(band.process_quantum),
            process_grace: time(band.process_grace),
        }),
        normal_share: bands.normal_share,
    }
}

#[cfg(test)]
mod tests {
    use super::UNKNOWN;
    use super::parameters;
    use super::properties;
    use crate::sched::parameters::Parameters;

    #[test]
    fn pre_66_properties_are_in_units_of_100_ns_and_nothing_is_lost() {
        assert_eq!(parameters(&UNKNOWN), Parameters::default());
        assert_eq!(properties(&Parameters::default(), 0), UNKNOWN);
    }
}
