resource "weir_override" "crawler" {
  subject = weir_subject.crawler.subject
  rule    = weir_rule.api.slug
  limit   = 5000
  reason  = "nightly index"
}
