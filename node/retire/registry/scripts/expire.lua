--[[
End a node's leases in one tenant now: it has closed its gates. An ended lease stays visible.

KEYS[1] meta  KEYS[2] leases
ARGV[1] term  ARGV[2] incarnation or ''
ARGV[3] node
Returns 'OK', also when the node holds none.
Errors: NEEDREGISTER tenant, TERMMISMATCH
]]
local refused = admit(KEYS[1])
if refused then
  return refused
end
local now = now_ms()
local leases = read_leases(redis.call('HGET', KEYS[2], ARGV[3]))
for _, lease in ipairs(leases) do
  lease.end_ms = math.min(lease.end_ms, now)
end
if #leases > 0 then
  write_leases(KEYS[2], ARGV[3], leases)
end
return 'OK'
