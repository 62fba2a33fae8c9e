//! Checks an answer against the schema that the server itself gives out: the part of JSON Schema that it
//! uses.

use serde_json::Value;

pub(crate) struct Schema(Value);

impl Schema {
    pub(crate) fn new(schema: Value) -> Self {
        Self(schema)
    }

    /// Panics where an answer is not as the schema says.
    #[track_caller]
    pub(crate) fn check(&self, definition: &str, answer: &Value) {
        let schema = &self.0["$defs"][definition];
        assert!(schema.is_object(), "no {definition} in the schema");
        if let Err(wrong) = self.matches(schema, answer) {
            panic!("{definition}: {wrong}");
        }
    }

    fn matches(&self, schema: &Value, value: &Value) -> Result<(), String> {
        if let Some(reference) = schema["$ref"].as_str() {
            let name = reference.strip_prefix("#/$defs/").expect("a reference to a definition");
            self.matches(&self.0["$defs"][name], value)?;
        }
        if let Some(kinds) = schema["anyOf"].as_array() {
            let wrong: Vec<_> =
                kinds.iter().filter_map(|kind| self.matches(kind, value).err()).collect();
            if wrong.len() == kinds.len() {
                return Err(wrong.join(" and "));
            }
        }
        if let Some(values) = schema["enum"].as_array()
            && !values.contains(value)
        {
            return Err(format!("{value} is none of {values:?}"));
        }
        let kinds = match &schema["type"] {
            Value::Array(kinds) => kinds.clone(),
            Value::Null => Vec::new(),
            kind => vec![kind.clone()],
        };
        if !kinds.is_empty() && !kinds.iter().any(|kind| is(value, kind.as_str().unwrap())) {
            return Err(format!("{value} is no {kinds:?}"));
        }
        if let (Some(object), Some(properties)) =
            (value.as_object(), schema["properties"].as_object())
        {
            for name in schema["required"].as_array().into_iter().flatten() {
                if !object.contains_key(name.as_str().unwrap()) {
                    return Err(format!("no {name} in {value}"));
                }
            }
            for (name, value) in object {
                // Stricter than the schema: what is not in it was forgotten there.
                let property =
                    properties.get(name).ok_or(format!("{name} is not in the schema"))?;
                self.matches(property, value).map_err(|wrong| format!("{name}: {wrong}"))?;
            }
        }
        for item in value.as_array().into_iter().flatten() {
            self.matches(&schema["items"], item)?;
        }
        Ok(())
    }
}

fn is(value: &Value, kind: &str) -> bool {
    match kind {
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "object" => value.is_object(),
        "array" => value.is_array(),
        "null" => value.is_null(),
        other => panic!("unknown type {other}"),
    }
}
