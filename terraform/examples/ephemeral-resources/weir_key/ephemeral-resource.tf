ephemeral "weir_key" "smoke_test" {
  scopes   = ["check"]
  lifetime = "10m"
}
