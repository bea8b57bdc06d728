--[[
Drop an owner's reservation. Releasing what is not held changes nothing.

KEYS[1] meta  KEYS[2] pins  KEYS[3] pin ends (reserve.lua)
ARGV[1] term  ARGV[2] incarnation or ''
ARGV[3] owner
Returns 'OK'.
Errors: NEEDREGISTER tenant, TERMMISMATCH
]]
local refused = admit(KEYS[1])
if refused then
  return refused
end
local pinned = expire_pins(KEYS[1], KEYS[2], KEYS[3], now_ms())
local own = redis.call('HGET', KEYS[2], ARGV[3])
if own then
  redis.call('HDEL', KEYS[2], ARGV[3])
  redis.call('ZREM', KEYS[3], ARGV[3])
  redis.call('HSET', KEYS[1], 'pinned', int(pinned - tonumber(own)))
end
return 'OK'
