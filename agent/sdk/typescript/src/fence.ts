/**
 * The fence in a store: it refuses a write under a token that is lower than one that the store has
 * seen. The other SDKs have the same statements, so that their workers may share a store.
 */

import { StaleToken } from "./errors.js";
import { Token } from "./token.js";

/**
 * The table in which a database keeps the highest token of each stream and binding. `fence` reads
 * and writes it. For PostgreSQL, and SQLite from 3.35.
 */
export const FENCE_TABLE =
  "CREATE TABLE IF NOT EXISTS leasehold_fence (stream TEXT PRIMARY KEY, token TEXT NOT NULL)";

// Returns no row where the table has a higher token. The row stays locked until the transaction
// ends, so that a later owner's write waits for this one.
const ADVANCE = `INSERT INTO leasehold_fence (stream, token) VALUES ($1, $2)
    ON CONFLICT (stream) DO UPDATE SET token = excluded.token
    WHERE leasehold_fence.token <= excluded.token
    RETURNING token`;

const NEWER = "SELECT token FROM leasehold_fence WHERE stream = $1 AND token > $2";

/** Runs a statement in the transaction of a write. Returns its rows, objects with the columns. */
export type FenceQuery = (
  sql: string,
  parameters: string[],
) => readonly unknown[] | Promise<readonly unknown[]>;

/** How a driver marks the parameters of a statement: `$1` and `$2`, or `?` and `?`. */
export type ParameterMark = "$" | "?";

/** See `Owned.fence`. */
export async function advance(
  name: string,
  token: Token,
  query: FenceQuery,
  mark: ParameterMark,
): Promise<void> {
  const rows = (sql: string): readonly unknown[] | Promise<readonly unknown[]> =>
    query(mark === "$" ? sql : sql.replace(/\$\d/g, mark), [name, token.sortable()]);
  if ((await rows(ADVANCE)).length > 0) {
    return;
  }
  const [newer] = (await rows(NEWER)) as readonly { token: string }[];
  throw new StaleToken(name, token, newer && new Token(newer.token));
}

/** See `Owned.checkToken`. */
export function check(name: string, token: Token, newest: Token): void {
  if (token.compare(newest) < 0) {
    throw new StaleToken(name, token, newest);
  }
}
