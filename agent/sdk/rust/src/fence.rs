//! The fence in a store: it refuses a write under a token that is lower than one that the store has
//! seen. The other SDKs have the same statements, so that their workers may share a store.

use leasehold_types::Token;

/// The table in which a database keeps the highest token of each stream and binding.
/// [`fence`](crate::Lease::fence) reads and writes it. For `PostgreSQL`, and `SQLite` from 3.35.
pub const FENCE_TABLE: &str =
    "CREATE TABLE IF NOT EXISTS leasehold_fence (stream TEXT PRIMARY KEY, token TEXT NOT NULL)";

/// Returns no row where the table has a higher token. The row stays locked until the transaction
/// ends, so that a later owner's write waits for this one.
const ADVANCE: &str = "INSERT INTO leasehold_fence (stream, token) VALUES ($1, $2)
    ON CONFLICT (stream) DO UPDATE SET token = excluded.token
    WHERE leasehold_fence.token <= excluded.token
    RETURNING token";

const NEWER: &str = "SELECT token FROM leasehold_fence WHERE stream = $1 AND token > $2";

/// A store has seen a higher token than that of the write: the stream or binding has a later owner.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "token {token} of {name} is stale: the store has {} of a later owner; \
     write nothing more and release it",
    shown(.newer)
)]
pub struct StaleToken {
    /// What is leased: `SET/STREAM`, or `PIPELINE/NODE/INDEX`.
    pub name: String,
    /// The token of the write.
    pub token: Token,
    /// The store's token; none if the store did not return one.
    pub newer: Option<Token>,
}

fn shown(newer: &Option<Token>) -> String {
    newer.map_or_else(|| "a newer one".to_owned(), |newer| newer.to_string())
}

/// See [`Lease::fence`](crate::Lease::fence).
pub(crate) async fn advance<E, F>(
    name: &str,
    token: Token,
    mut query: impl FnMut(&'static str, [String; 2]) -> F,
) -> Result<(), E>
where
    E: From<StaleToken>,
    F: Future<Output = Result<Option<String>, E>>,
{
    let parameters = [name.to_owned(), token.sortable()];
    if query(ADVANCE, parameters.clone()).await?.is_some() {
        return Ok(());
    }
    let newer = query(NEWER, parameters).await?.and_then(|text| text.parse().ok());
    Err(StaleToken { name: name.to_owned(), token, newer }.into())
}

/// See [`Lease::check_token`](crate::Lease::check_token).
pub(crate) fn check(name: &str, token: Token, newest: Token) -> Result<(), StaleToken> {
    if token < newest {
        return Err(StaleToken { name: name.to_owned(), token, newer: Some(newest) });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;

    /// Runs a statement with its parameters in a database of `SQLite`, and prints the row.
    const RUN: &str = "\
import sqlite3, sys
path, statement, name, token = sys.argv[1:]
with sqlite3.connect(path) as database:
    rows = database.execute(statement, {'1': name, '2': token}).fetchall()
print(*(text for row in rows for text in row))";

    fn run(
        path: &Path,
        statement: &str,
        parameters: &[String; 2],
    ) -> anyhow::Result<Option<String>> {
        let mut python = Command::new("python3");
        let output = python.args(["-c", RUN]).arg(path).arg(statement).args(parameters).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "{statement}: {said}");
        let row = String::from_utf8(output.stdout)?.trim_end().to_owned();
        Ok((!row.is_empty()).then_some(row))
    }

    fn token(text: &str) -> Token {
        text.parse().expect("a token")
    }

    #[tokio::test]
    async fn a_database_refuses_a_token_below_the_highest() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("fence.db");
        run(&path, FENCE_TABLE, &[String::new(), String::new()])?;
        let write = async |name: &str, text: &str| -> anyhow::Result<()> {
            let query = |statement: &'static str, parameters: [String; 2]| {
                std::future::ready(run(&path, statement, &parameters))
            };
            advance(name, token(text), query).await
        };
        write("cars/new", "8.9").await?;
        write("cars/new", "8.10").await?;
        write("cars/old", "8.9").await?;
        let refused = write("cars/new", "8.9").await.expect_err("a later owner has written");
        let stale = StaleToken {
            name: "cars/new".to_owned(),
            token: token("8.9"),
            newer: Some(token("8.10")),
        };
        assert_eq!(refused.downcast_ref::<StaleToken>(), Some(&stale));
        assert_eq!(
            refused.to_string(),
            "token 8.9 of cars/new is stale: the store has 8.10 of a later owner; \
             write nothing more and release it"
        );
        // The owner itself writes again.
        write("cars/new", "8.10").await
    }

    #[test]
    fn a_token_below_the_newest_is_stale() {
        let of = |newest: &str| check("cars/new", token("8.9"), token(newest));
        assert_eq!((of("8.8"), of("8.9")), (Ok(()), Ok(())));
        assert_eq!(of("8.10").map_err(|stale| stale.newer), Err(Some(token("8.10"))));
    }
}
