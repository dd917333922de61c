package leasehold

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// FenceTable is the table in which a database keeps the highest token of each stream and binding.
// [Lease.Fence] reads and writes it. For PostgreSQL, and SQLite from 3.35.
const FenceTable = `CREATE TABLE IF NOT EXISTS leasehold_fence
	(stream TEXT PRIMARY KEY, token TEXT NOT NULL)`

// The other SDKs have the same statements, so that their workers may share a store.
const (
	// advanceFence returns no row where the table has a higher token. The row stays locked until
	// the transaction ends, so that a later owner's write waits for this one.
	advanceFence = `INSERT INTO leasehold_fence (stream, token) VALUES ($1, $2)
		ON CONFLICT (stream) DO UPDATE SET token = excluded.token
		WHERE leasehold_fence.token <= excluded.token
		RETURNING token`
	selectNewer = `SELECT token FROM leasehold_fence WHERE stream = $1 AND token > $2`
)

// StaleTokenError means that a store has seen a higher token than that of the write: the stream or
// binding has a later owner.
type StaleTokenError struct {
	// Name is what is leased: SET/STREAM, or PIPELINE/NODE/INDEX.
	Name string
	// Token is that of the write.
	Token Token
	// Newer is the store's; the zero Token if the store did not return it.
	Newer Token
}

// Error returns the name, both tokens, and what to do.
func (e *StaleTokenError) Error() string {
	newer := "a newer one"
	if e.Newer != (Token{}) {
		newer = e.Newer.String()
	}
	return fmt.Sprintf("token %s of %s is stale: the store has %s of a later owner; "+
		"write nothing more and release it", e.Token, e.Name, newer)
}

// Fence refuses a write in this transaction, if a later owner has written to the database. Call it
// before the write. The table is [FenceTable], and the driver one of PostgreSQL or SQLite that
// marks parameters as $1 and $2.
//
// The error is a [*StaleTokenError], or that of the database; roll the transaction back.
func (l *Lease) Fence(ctx context.Context, tx *sql.Tx) error {
	name, token := l.owned.key.String(), l.Token()
	var text string
	err := tx.QueryRowContext(ctx, advanceFence, name, token.Sortable()).Scan(&text)
	if !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	stale := &StaleTokenError{Name: name, Token: token}
	err = tx.QueryRowContext(ctx, selectNewer, name, token.Sortable()).Scan(&text)
	if errors.Is(err, sql.ErrNoRows) {
		return stale
	}
	if err == nil {
		stale.Newer, err = ParseToken(text)
	}
	if err != nil {
		return errors.Join(stale, err)
	}
	return stale
}

// CheckToken refuses a write to a store that has seen newest, the highest token of this stream or
// binding that it keeps: the error is then a [*StaleTokenError]. Nobody else may write to the store
// between that look and the write: it is locked, or the write is conditional.
func (l *Lease) CheckToken(newest Token) error {
	if l.Token().Less(newest) {
		return &StaleTokenError{Name: l.owned.key.String(), Token: l.Token(), Newer: newest}
	}
	return nil
}
