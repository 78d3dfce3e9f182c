data "weir_subject" "crawler" {
  subject = "internal/crawler"
}
