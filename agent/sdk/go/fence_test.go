package leasehold

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"testing"
)

// runInSQLite runs a statement with its parameters in a database, and prints its rows.
const runInSQLite = `
import json, sqlite3, sys
path, statement, *parameters = sys.argv[1:]
with sqlite3.connect(path) as database:
    marked = {str(number): text for number, text in enumerate(parameters, 1)}
    print(json.dumps(database.execute(statement, marked).fetchall()))
`

// pythonDriver is a driver for SQLite through Python's, since Go's library has none. Each statement
// is a transaction of its own.
type pythonDriver struct{}

type (
	pythonConn struct{ path string }
	pythonStmt struct{ path, text string }
	pythonRows struct{ rows [][]string }
)

func (pythonDriver) Open(path string) (driver.Conn, error) { return pythonConn{path}, nil }
func (pythonConn) Close() error                            { return nil }
func (c pythonConn) Begin() (driver.Tx, error)             { return c, nil }
func (pythonConn) Commit() error                           { return nil }
func (pythonConn) Rollback() error                         { return nil }
func (pythonStmt) Close() error                            { return nil }
func (pythonStmt) NumInput() int                           { return -1 }
func (*pythonRows) Columns() []string                      { return []string{"token"} }
func (*pythonRows) Close() error                           { return nil }

func (c pythonConn) Prepare(text string) (driver.Stmt, error) {
	return pythonStmt{c.path, text}, nil
}

func (s pythonStmt) Exec(parameters []driver.Value) (driver.Result, error) {
	_, err := s.Query(parameters)
	return driver.ResultNoRows, err
}

func (s pythonStmt) Query(parameters []driver.Value) (driver.Rows, error) {
	arguments := []string{"-c", runInSQLite, s.path, s.text}
	for _, parameter := range parameters {
		arguments = append(arguments, fmt.Sprint(parameter))
	}
	output, err := exec.Command("python3", arguments...).Output()
	if err != nil {
		return nil, err
	}
	rows := &pythonRows{}
	return rows, json.Unmarshal(output, &rows.rows)
}

func (r *pythonRows) Next(values []driver.Value) error {
	if len(r.rows) == 0 {
		return io.EOF
	}
	for index, text := range r.rows[0] {
		values[index] = text
	}
	r.rows = r.rows[1:]
	return nil
}

func init() {
	sql.Register("python-sqlite", pythonDriver{})
}

// leaseUnder is a lease of cars/new under a token.
func leaseUnder(t *testing.T, token string) *Lease {
	t.Helper()
	key := leaseKey{kind: streamKind, of: "cars", name: "new"}
	listed := listedLease{key: key, token: mustToken(t, token)}
	return &Lease{owned: &ownedLease{listedLease: listed}}
}

func TestADatabaseRefusesATokenBelowTheHighest(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("no python3 on PATH")
	}
	db, err := sql.Open("python-sqlite", filepath.Join(t.TempDir(), "fence.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(FenceTable); err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	write := func(token string) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		if err := leaseUnder(t, token).Fence(ctx, tx); err != nil {
			return err
		}
		return tx.Commit()
	}
	for _, token := range []string{"8.9", "8.10", "8.10"} {
		if err := write(token); err != nil {
			t.Fatal(token, err)
		}
	}
	var stale *StaleTokenError
	if err := write("8.9"); !errors.As(err, &stale) || stale.Newer != (Token{8, 10}) {
		t.Fatal(err)
	}
	want := "token 8.9 of cars/new is stale: the store has 8.10 of a later owner; " +
		"write nothing more and release it"
	if stale.Error() != want {
		t.Error(stale)
	}
	if err := write("8.10"); err != nil {
		t.Error("the owner itself writes again: ", err)
	}
}

func TestATokenBelowTheNewestIsStale(t *testing.T) {
	lease := leaseUnder(t, "8.9")
	for _, newest := range []Token{{8, 8}, {8, 9}} {
		if err := lease.CheckToken(newest); err != nil {
			t.Error(err)
		}
	}
	var stale *StaleTokenError
	if err := lease.CheckToken(Token{8, 10}); !errors.As(err, &stale) || stale.Name != "cars/new" {
		t.Error(err)
	}
}
