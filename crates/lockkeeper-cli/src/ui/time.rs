//! Moments as RFC 3339 text, as in the rest of the command's JSON.

use std::time::SystemTime;

use serde::{Deserialize, Deserializer, Serializer};

pub(crate) fn text(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time).to_string()
}

pub(crate) fn plain<S: Serializer>(time: &SystemTime, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&text(*time))
}

pub(crate) fn optional<S: Serializer>(time: &Option<SystemTime>, to: S) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => plain(time, to),
        None => to.serialize_none(),
    }
}

pub(crate) fn read<'de, D: Deserializer<'de>>(from: D) -> Result<SystemTime, D::Error> {
    let text = String::deserialize(from)?;
    humantime::parse_rfc3339(&text).map_err(serde::de::Error::custom)
}

pub(crate) fn read_optional<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<SystemTime>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    text.map(|text| humantime::parse_rfc3339(&text)).transpose().map_err(serde::de::Error::custom)
}
