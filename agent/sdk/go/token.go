package leasehold

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// Token is a fencing token, written EPOCH.SEQ. Tokens compare by their numbers, with ==, Compare
// and Less: 1.9 is lower than 1.10, where the texts compare the other way round.
type Token struct {
	// Epoch is the number of the leader's term.
	Epoch uint64
	// Seq counts the grants of a term.
	Seq uint64
}

// ParseToken reads EPOCH.SEQ.
func ParseToken(text string) (Token, error) {
	first, second, _ := strings.Cut(text, ".")
	epoch, epochErr := strconv.ParseUint(first, 10, 64)
	seq, seqErr := strconv.ParseUint(second, 10, 64)
	if epochErr != nil || seqErr != nil {
		return Token{}, fmt.Errorf("invalid token %q: expected EPOCH.SEQ, for example 8.17", text)
	}
	return Token{epoch, seq}, nil
}

// Compare returns -1 if t is lower than other, 0 if they are equal, and +1 if t is higher.
func (t Token) Compare(other Token) int {
	if by := cmp.Compare(t.Epoch, other.Epoch); by != 0 {
		return by
	}
	return cmp.Compare(t.Seq, other.Seq)
}

// Less returns whether t is lower than other.
func (t Token) Less(other Token) bool {
	return t.Compare(other) < 0
}

// String returns EPOCH.SEQ.
func (t Token) String() string {
	return fmt.Sprintf("%d.%d", t.Epoch, t.Seq)
}

// Sortable returns a text of 41 characters that compares as the token does, for a store that
// compares texts only.
func (t Token) Sortable() string {
	return fmt.Sprintf("%020d.%020d", t.Epoch, t.Seq)
}

// MarshalText writes EPOCH.SEQ, so that JSON has the token as a text.
func (t Token) MarshalText() ([]byte, error) {
	return []byte(t.String()), nil
}

// UnmarshalText reads EPOCH.SEQ.
func (t *Token) UnmarshalText(text []byte) error {
	token, err := ParseToken(string(text))
	if err == nil {
		*t = token
	}
	return err
}
