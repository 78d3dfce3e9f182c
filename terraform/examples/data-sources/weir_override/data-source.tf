data "weir_override" "crawler" {
  subject = "internal/crawler"
  rule    = "api"
}
