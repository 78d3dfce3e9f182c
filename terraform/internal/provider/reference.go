package provider

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/ephemeral"
	"github.com/hashicorp/terraform-plugin-framework/provider"
)

// Reference returns the pages of the reference by their path below docs, in the layout of the
// Terraform registry. Examples are read from the folder examples of the module.
func Reference(module string) (map[string]string, error) {
	examples := os.DirFS(filepath.Join(module, "examples"))
	pages := map[string]string{}
	var err error
	example := func(name string) string {
		content, e := fs.ReadFile(examples, name)
		if e != nil {
			err = e
		}
		return strings.TrimSpace(string(content))
	}
	index := page("weir Provider", "Manages the configuration of a tenant of Weir, a rate-limit service.", example("provider/provider.tf"))
	index += "## Configuration\n\n| attribute | meaning |\n|---|---|\n"
	for _, a := range providerAttributes() {
		index += fmt.Sprintf("| `%s` | %s |\n", a[0], a[1])
	}
	pages["index.md"] = index
	for _, k := range sortedKinds() {
		if !k.noResource {
			pages[path.Join("resources", k.name+".md")] = k.resourcePage(example(path.Join("resources", typeName+"_"+k.name, "resource.tf")))
		}
		for _, s := range k.sources() {
			pages[path.Join("data-sources", s.name()+".md")] = s.page(example(path.Join("data-sources", typeName+"_"+s.name(), "data-source.tf")))
		}
	}
	key := page("weir_key (Ephemeral Resource)", ephemeralKeyAbout, example("ephemeral-resources/weir_key/ephemeral-resource.tf"))
	key += "## Attributes\n\n| attribute | | meaning |\n|---|---|---|\n"
	for _, a := range ephemeralKeyAttributes() {
		key += fmt.Sprintf("| `%s` | %s | %s |\n", a[0], a[1], a[2])
	}
	pages["ephemeral-resources/key.md"] = key
	return pages, err
}

func page(title, about, example string) string {
	head := "---\n# Written by internal/reference; a test compares it with the schema.\npage_title: \"" + title + "\"\ndescription: |-\n  " + about + "\n---\n\n# " + title + "\n\n" + about + "\n\n"
	return head + "```terraform\n" + example + "\n```\n\n"
}

func (k *kind) resourcePage(example string) string {
	text := page(typeName+"_"+k.name+" (Resource)", k.about, example)
	if k.notes != "" {
		text += k.notes + "\n\n"
	}
	text += "## Attributes\n\n" + attributeTable(k.attributes, true)
	text += "\n## Import\n\n```sh\nterraform import " + typeName + "_" + k.name + ".example " + k.importForm() + "\n```\n"
	return text
}

// importForm is an example of an import id.
func (k *kind) importForm() string {
	switch {
	case len(k.key) == 0:
		return k.name
	case k.name == "member":
		return "ada@example.com"
	}
	return strings.ToUpper(strings.Join(k.key, "/"))
}

func (s *source) page(example string) string {
	return page(typeName+"_"+s.name()+" (Data Source)", s.about(), example) + "## Attributes\n\n" + attributeTable(s.attributes, false)
}

func attributeTable(list []*attribute, resource bool) string {
	text := "| attribute | type | | meaning |\n|---|---|---|---|\n"
	var add func(list []*attribute, prefix string)
	add = func(list []*attribute, prefix string) {
		for _, a := range list {
			use := "read-only"
			switch {
			case !resource && prefix != "":
			case a.required:
				use = "required"
			case a.optional:
				use = "optional"
			}
			if a.sensitive {
				use += ", sensitive"
			}
			text += fmt.Sprintf("| `%s%s` | %s | %s | %s |\n", prefix, a.name, a.kindName(), use, strings.ReplaceAll(a.markdown(), "|", "\\|"))
			step := a.name + "."
			switch a.form {
			case objectListForm:
				step = a.name + "[]."
			case objectMapForm:
				step = a.name + "{}."
			}
			add(a.fields, prefix+step)
		}
	}
	add(list, "")
	return text
}

func providerAttributes() (out [][2]string) {
	var resp provider.SchemaResponse
	New("").Schema(context.Background(), provider.SchemaRequest{}, &resp)
	for _, name := range slices.Sorted(maps.Keys(resp.Schema.Attributes)) {
		out = append(out, [2]string{name, resp.Schema.Attributes[name].GetMarkdownDescription()})
	}
	return out
}

func ephemeralKeyAttributes() (out [][3]string) {
	var resp ephemeral.SchemaResponse
	(&ephemeralKey{}).Schema(context.Background(), ephemeral.SchemaRequest{}, &resp)
	for _, name := range slices.Sorted(maps.Keys(resp.Schema.Attributes)) {
		a := resp.Schema.Attributes[name]
		use := "read-only"
		switch {
		case a.IsRequired():
			use = "required"
		case a.IsOptional():
			use = "optional"
		}
		if a.IsSensitive() {
			use += ", sensitive"
		}
		out = append(out, [3]string{name, use, a.GetMarkdownDescription()})
	}
	return out
}
