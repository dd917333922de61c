// Describe prints the messages of package wire, for tests/tests/sdk/go_messages.rs.
//
// The standard input is a JSON object: a message's name, and an object of that message. For each
// message it prints the types of its fields, what is read from the given object, and what is read
// from an empty one; for each enum the values that the SDK names.
//
//	go run ./internal/wire/describe <<< '{"DrainResponse": {"jobs_left": 3}}'
package main

import (
	"encoding/json"
	"log"
	"os"
	"reflect"
	"strings"

	leasehold "leasehold.dev/agent/sdk/go"
	"leasehold.dev/agent/sdk/go/internal/wire"
)

// messages has every message with a name of worker.proto.
var messages = []any{
	wire.Lease{}, wire.StreamLease{}, wire.Binding{}, wire.Next{}, wire.Endpoint{},
	wire.StartWorkerRequest{}, wire.BeginJobResponse{}, wire.DrainResponse{},
}

// enums has every enum of worker.proto that the SDK names values of.
var enums = map[string]any{
	"StreamLeaseState": []wire.StreamLeaseState{wire.Held, wire.Revoked},
	"RefusalReason": []leasehold.Reason{
		leasehold.ReasonNoLease, leasehold.ReasonNoSlot, leasehold.ReasonDraining,
		leasehold.ReasonNotHeld, leasehold.ReasonLimit, leasehold.ReasonJournal,
		leasehold.ReasonInvalid, leasehold.ReasonFailing,
	},
}

// described is what is printed of one message.
type described struct {
	Types         map[string]string `json:"types"`
	Read          any               `json:"read"`
	ReadOfNothing any               `json:"read_of_nothing"`
}

func main() {
	log.SetFlags(0)
	var given map[string]json.RawMessage
	if err := json.NewDecoder(os.Stdin).Decode(&given); err != nil {
		log.Fatal("the standard input: ", err)
	}
	all := map[string]described{}
	for _, message := range messages {
		of := reflect.TypeOf(message)
		whole, ok := given[of.Name()]
		if !ok {
			log.Fatal("no object is given for ", of.Name())
		}
		all[of.Name()] = described{types(of), read(of, whole), read(of, []byte("{}"))}
	}
	answer := map[string]any{"messages": all, "enums": enums}
	if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
		log.Fatal(err)
	}
}

// types returns the type of each field as Go writes it, by its name in JSON.
func types(of reflect.Type) map[string]string {
	found := map[string]string{}
	for i := 0; i < of.NumField(); i++ {
		field := of.Field(i)
		found[field.Tag.Get("json")] = strings.ReplaceAll(field.Type.String(), "wire.", "")
	}
	return found
}

// read decodes a text and returns what it means.
func read(of reflect.Type, text []byte) any {
	message := reflect.New(of)
	if err := json.Unmarshal(text, message.Interface()); err != nil {
		log.Fatalf("%s: %v", of.Name(), err)
	}
	return plain(message.Elem())
}

// plain returns a message as maps, lists and texts: an absent list is an empty one.
func plain(value reflect.Value) any {
	switch value.Kind() {
	case reflect.Struct:
		fields := map[string]any{}
		for i := 0; i < value.NumField(); i++ {
			fields[value.Type().Field(i).Tag.Get("json")] = plain(value.Field(i))
		}
		return fields
	case reflect.Slice:
		items := []any{}
		for i := 0; i < value.Len(); i++ {
			items = append(items, plain(value.Index(i)))
		}
		return items
	default:
		return value.Interface()
	}
}
