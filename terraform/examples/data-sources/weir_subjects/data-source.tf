data "weir_subjects" "search" {
  label = "team=search"
}
