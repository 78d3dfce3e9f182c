from unittest import TestCase

from weir_client.testing import Fake, allowed, denied


class OrdersTest(TestCase):
    def test_the_second_order_is_denied(self):
        limiter = Fake.script(allowed(), denied(3000))
        self.assertTrue(limiter.check("user_42").allowed)
        self.assertEqual(3000, limiter.check("user_42").retry_after_ms)
        self.assertEqual(2, len(limiter.asked))
