resource "weir_member" "ada" {
  email = "ada@example.com"
  role  = "editor"
}
