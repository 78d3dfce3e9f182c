package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// completeCommand is what the scripts of shells call: it prints the words that can replace the last
// argument. It is not in the help.
const completeCommand = "__complete"

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"The shell: ${enum}."`
}

var completionScripts = map[string]string{
	"bash": `_weir() {
  local IFS=$'\n'
  COMPREPLY=($(weir __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _weir weir
`,
	"zsh": `#compdef weir
_weir() {
  local -a found
  found=("${(@f)$(weir __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  if [[ -n "$found[1]" ]]; then compadd -a found; else _files; fi
}
compdef _weir weir
`,
	"fish": `function __weir_complete
  set -l before (commandline -opc)
  set -l current (commandline -ct)
  weir __complete $before[2..-1] "$current" 2>/dev/null
end
complete -c weir -a '(__weir_complete)'
`,
}

// Run prints the script.
func (c *completionCmd) Run(t *terminal) error {
	_, err := fmt.Fprint(t.out, completionScripts[c.Shell])
	return err
}

// complete returns the words that can replace the last one. If there are none, the shell suggests
// files.
func complete(model *kong.Application, words []string) (out []string) {
	node, position := model.Node, 0
	var value *kong.Flag // which takes the next word
	for _, word := range words[:max(len(words)-1, 0)] {
		if value != nil {
			value = nil
			continue
		}
		if strings.HasPrefix(word, "-") {
			value = openFlag(node, word)
			continue
		}
		if child := childOf(node, word); child != nil {
			node, position = child, 0
		} else {
			position++
		}
	}
	current := ""
	if len(words) > 0 {
		current = words[len(words)-1]
	}
	name, _, assigned := strings.Cut(current, "=")
	switch {
	case value != nil:
		out = enumOf(value.Value)
	case assigned && strings.HasPrefix(current, "--"):
		if flag := openFlag(node, name); flag != nil {
			for _, v := range enumOf(flag.Value) {
				out = append(out, name+"="+v)
			}
		}
	case strings.HasPrefix(current, "-"):
		for at := node; at != nil; at = at.Parent {
			for _, flag := range at.Flags {
				out = append(out, "--"+flag.Name)
			}
		}
	default:
		for _, child := range node.Children {
			if !child.Hidden {
				out = append(out, child.Name)
			}
		}
		if position < len(node.Positional) {
			out = append(out, enumOf(node.Positional[position])...)
		}
	}
	out = slices.DeleteFunc(out, func(s string) bool { return !strings.HasPrefix(s, current) })
	slices.Sort(out)
	return slices.Compact(out)
}

func childOf(node *kong.Node, name string) *kong.Node {
	for _, child := range node.Children {
		if child.Name == name && !child.Hidden {
			return child
		}
	}
	return nil
}

// openFlag returns the flag that a word names, if its value is the next word.
func openFlag(node *kong.Node, word string) *kong.Flag {
	for at := node; at != nil; at = at.Parent {
		for _, flag := range at.Flags {
			if (word == "--"+flag.Name || flag.Short != 0 && word == "-"+string(flag.Short)) && !flag.IsBool() {
				return flag
			}
		}
	}
	return nil
}

func enumOf(v *kong.Value) []string {
	if v.Enum == "" {
		return nil
	}
	return v.EnumSlice()
}
