//! What can be said of a row template without a row: whether it compiles, and which columns it uses.

use std::collections::BTreeSet;

use minijinja::Environment;

/// All columns of the row as a map, in every template of a corpus.
const ROW: &str = "row";

/// The columns that a minijinja template names (not its own variables, nor functions such as `range`, nor what it takes
/// from `row["any name"]`); else what does not compile, and on which line of the template.
pub fn columns(template: &str) -> Result<BTreeSet<String>, String> {
    let environment = Environment::new();
    let compiled = environment.template_from_str(template).map_err(|e| {
        let line = e.line().map_or(String::new(), |line| format!(" in line {line} of the template"));
        format!("{}{line}", e.detail().map_or_else(|| e.kind().to_string(), |detail| format!("{}: {detail}", e.kind())))
    })?;
    let mut used: BTreeSet<String> = compiled.undeclared_variables(false).into_iter().collect();
    for (name, _) in environment.globals() {
        used.remove(name);
    }
    used.remove(ROW);
    Ok(used)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_what_the_template_does_not_define() {
        let used = columns(
            "{% set n = history | length %}{% for h in history %}{{ loop.index }} {{ h.name }}{% endfor %}\
             {% for i in range(n) %}{{ candidates[i] }}{% endfor %}{{ n }}",
        );
        assert_eq!(used.unwrap(), BTreeSet::from(["candidates".to_string(), "history".to_string()]));
        assert_eq!(columns("{{ row['Unit price'] }} {{ title }}"), Ok(BTreeSet::from(["title".to_string()])));
        assert_eq!(columns("no column"), Ok(BTreeSet::new()));
        let error = columns("one\n{% if title %}").unwrap_err();
        assert!(error.contains("line 2 of the template") && error.contains("syntax error"), "{error}");
    }
}
