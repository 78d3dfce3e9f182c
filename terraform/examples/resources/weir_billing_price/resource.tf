resource "weir_billing_price" "pro_monthly" {
  id       = "price_pro_monthly"
  endpoint = weir_billing_endpoint.stripe.id
  plan     = weir_plan.pro.slug
}
