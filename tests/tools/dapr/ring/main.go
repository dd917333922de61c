// ring counts the keys that get another owner when a host joins the ring of Dapr's placement, by the
// package of Dapr by which its sidecars look up the owner of an actor.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/dapr/dapr/pkg/placement/hashing"
)

const usage = `ring [OPTION...] FILE

Adds hosts to the ring of Dapr's placement, one after another, and prints for each a line of JSON: the
keys that get another owner, and those of the host with most. FILE has the name of a host on each line.

Example:
  ring --settled=3 --keys=1000 hosts.txt

`

// change is what one host changes that joins.
type change struct {
	Moved int `json:"moved"`
	Most  int `json:"most"`
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("ring: ")
	settled := flag.Int("settled", 1, "how many of the hosts are there at the beginning")
	keys := flag.Int("keys", 100_000, "how many keys there are: stream-0, stream-1 and so on")
	replicas := flag.Int64("replicas", 100, "the places of each host on the ring")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), usage)
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 1 {
		log.Fatal("name one file of hosts: `ring --help` has an example")
	}
	text, err := os.ReadFile(flag.Arg(0))
	if err != nil {
		log.Fatal(err)
	}
	hosts := strings.Fields(string(text))
	if *settled < 1 || *settled > len(hosts) {
		log.Fatalf("--settled=%d: use a number from 1 to %d, the hosts of %s", *settled, len(hosts),
			flag.Arg(0))
	}
	cache := hashing.NewVirtualNodesCache()
	before := owners(hosts[:*settled], *keys, *replicas, cache)
	for joined := *settled + 1; joined <= len(hosts); joined++ {
		after := owners(hosts[:joined], *keys, *replicas, cache)
		if err := json.NewEncoder(os.Stdout).Encode(compare(before, after)); err != nil {
			log.Fatal(err)
		}
		before = after
	}
}

// owners returns the host of each key.
func owners(hosts []string, keys int, replicas int64, cache *hashing.VirtualNodesCache) []string {
	members := make(map[string]*hashing.Host, len(hosts))
	for _, host := range hosts {
		members[host] = hashing.NewHost(host, "feeds", 0, 0)
	}
	ring := hashing.NewFromExisting(members, replicas, cache)
	found := make([]string, keys)
	for key := range found {
		host, err := ring.Get(fmt.Sprintf("stream-%d", key))
		if err != nil {
			log.Fatal(err)
		}
		found[key] = host
	}
	return found
}

func compare(before, after []string) change {
	var result change
	counts := make(map[string]int)
	for key, host := range after {
		if before[key] != host {
			result.Moved++
		}
		counts[host]++
		result.Most = max(result.Most, counts[host])
	}
	return result
}
