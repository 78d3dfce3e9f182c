resource "weir_subject" "crawler" {
  subject = "internal/crawler"
  plan    = weir_plan.pro.slug
  labels  = { team = "search" }
}
