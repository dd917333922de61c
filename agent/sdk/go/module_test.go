package leasehold

import (
	"archive/zip"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const (
	modulePath    = "leasehold.dev/agent/sdk/go"
	moduleVersion = "v0.0.1"
)

// consumer is a program that uses the module from outside.
const consumer = `package main

import (
	"fmt"

	leasehold "leasehold.dev/agent/sdk/go"
)

func main() {
	_, err := leasehold.New(leasehold.Options{Address: "nowhere"})
	fmt.Println(err)
}
`

func TestTheModuleIsFetchedWithGoGetAndNeedsNoOther(t *testing.T) {
	program, err := exec.LookPath("go")
	if err != nil {
		t.Skip("no go on PATH")
	}
	proxy, folder := t.TempDir(), t.TempDir()
	packModule(t, filepath.Join(proxy, filepath.FromSlash(modulePath), "@v"))
	environment := append(os.Environ(),
		"GOPROXY=file://"+filepath.ToSlash(proxy), "GOSUMDB=off", "GONOPROXY=", "GOPRIVATE=",
		"GOMODCACHE="+t.TempDir(), "GOFLAGS=-modcacherw", "GOWORK=off", "GOTOOLCHAIN=local",
		"CGO_ENABLED=0")
	run := func(arguments ...string) string {
		command := exec.Command(program, arguments...)
		command.Dir, command.Env = folder, environment
		output, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(arguments, " "), err, output)
		}
		return string(output)
	}
	if err := os.WriteFile(filepath.Join(folder, "main.go"), []byte(consumer), 0o644); err != nil {
		t.Fatal(err)
	}
	run("mod", "init", "example.com/consumer")
	run("get", modulePath+"@"+moduleVersion)
	if said := run("run", "."); !strings.Contains(said, `invalid address "nowhere"`) {
		t.Error(said)
	}
	all := strings.Fields(run("list", "-m", "-f", "{{.Path}}", "all"))
	if strings.Join(all, " ") != "example.com/consumer "+modulePath {
		t.Error("the module needs others: ", all)
	}
}

// packModule writes the module as a proxy serves it.
func packModule(t *testing.T, folder string) {
	t.Helper()
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	goMod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(goMod), "module "+modulePath+"\n") {
		t.Fatalf("the module has another path: %s", goMod)
	}
	write("list", moduleVersion+"\n")
	write(moduleVersion+".info", fmt.Sprintf(`{"Version": %q}`, moduleVersion))
	write(moduleVersion+".mod", string(goMod))
	file, err := os.Create(filepath.Join(folder, moduleVersion+".zip"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	archive := zip.NewWriter(file)
	err = filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		return pack(archive, path)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
}

func pack(archive *zip.Writer, path string) error {
	source, err := os.Open(path)
	if err != nil {
		return err
	}
	defer source.Close()
	entry, err := archive.Create(modulePath + "@" + moduleVersion + "/" + filepath.ToSlash(path))
	if err != nil {
		return err
	}
	_, err = io.Copy(entry, source)
	return err
}
