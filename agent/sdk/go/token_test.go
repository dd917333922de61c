package leasehold

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

func mustToken(t *testing.T, text string) Token {
	t.Helper()
	token, err := ParseToken(text)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestTokensCompareAsNumbers(t *testing.T) {
	var tokens []Token
	var sortable, texts []string
	for _, text := range []string{"9.1", "10.2", "9.10", "9.9"} {
		tokens = append(tokens, mustToken(t, text))
	}
	slices.SortFunc(tokens, Token.Compare)
	for _, token := range tokens {
		texts, sortable = append(texts, token.String()), append(sortable, token.Sortable())
	}
	if strings.Join(texts, " ") != "9.1 9.9 9.10 10.2" {
		t.Error(texts)
	}
	if !slices.IsSorted(sortable) || len(sortable[0]) != 41 {
		t.Error(sortable)
	}
	if low, high := tokens[1], tokens[2]; !low.Less(high) || high.Less(low) || low.Less(low) {
		t.Error(low, high)
	}
}

func TestWhatIsNoTokenIsRefused(t *testing.T) {
	for _, text := range []string{"", "9", "9.", ".9", "a.1", "-1.2", "+1.2", "1.2.3", "1_0.2"} {
		if token, err := ParseToken(text); err == nil {
			t.Errorf("%q is %v", text, token)
		}
	}
}

func TestATokenIsATextInJSON(t *testing.T) {
	text, err := json.Marshal(map[string]Token{"token": {9, 10}})
	if err != nil || string(text) != `{"token":"9.10"}` {
		t.Error(string(text), err)
	}
	var read map[string]Token
	if err := json.Unmarshal(text, &read); err != nil || read["token"] != (Token{9, 10}) {
		t.Error(read, err)
	}
	if err := json.Unmarshal([]byte(`{"token":"9"}`), &read); err == nil {
		t.Error(read)
	}
}
