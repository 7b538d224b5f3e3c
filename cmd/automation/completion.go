package main

import (
	"github.com/spf13/cobra"
)

func newCompletion(io Streams) *cobra.Command {
	shells := []string{"bash", "zsh", "fish", "powershell"}
	return &cobra.Command{
		Use: "completion bash|zsh|fish|powershell", Short: "Write the completion script of a shell",
		Args: cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs), ValidArgs: shells,
		Example: "  source <(automation completion bash)\n  automation completion fish > ~/.config/fish/completions/automation.fish",
		RunE: func(c *cobra.Command, args []string) error {
			root := c.Root()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(io.Out, true)
			case "zsh":
				return root.GenZshCompletion(io.Out)
			case "fish":
				return root.GenFishCompletion(io.Out, true)
			default:
				return root.GenPowerShellCompletionWithDesc(io.Out)
			}
		},
	}
}
